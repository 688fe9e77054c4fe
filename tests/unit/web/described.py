"""An application to describe by its name."""

from __future__ import annotations

from tests.unit.web.test_asgi import paying

app = paying()

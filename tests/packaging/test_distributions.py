"""What is in the wheel and in the source distribution, and what an index would refuse."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet

from tests.packaging.conftest import ROOT, Distributions, build
from tools.readme_hook import URL, ReadmeHook, with_whole_links
from tools.setup import VERSION_MAX, VERSION_MIN
from tools.site.markdown import links

README = (ROOT / "README.md").read_text()


def library() -> set[str]:
    """The files of the library in this folder, of what `outbox bench` measures, and of the Spark jobs."""
    files = [
        path for name in ("outbox", "outbox_bench", "spark_jobs") for path in (ROOT / name).rglob("*") if path.is_file()
    ]
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(opened.read(name), validate=True)


def test_the_wheel_holds_the_whole_library_its_licence_and_nothing_else(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as opened:
        names = set(opened.namelist())
    info = {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == library()
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert {"outbox/py.typed", "outbox/ops/template/host.json.txt"} <= names


def test_the_wheel_is_for_every_machine_and_names_none(distributions: Distributions) -> None:
    assert distributions.wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(distributions.wheel) as opened:
        reporting = [name for name in opened.namelist() if str(ROOT).encode() in opened.read(name)]
    assert reporting == []


def test_the_source_distribution_holds_what_the_wheel_is_built_of_and_no_more(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    others = {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
        "tools/readme_hook.py",
    }
    assert names == library() | others


def test_the_source_distribution_builds_the_same_wheel(distributions: Distributions, tmp_path: Path) -> None:
    with tarfile.open(distributions.sdist) as opened:
        how: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        opened.extractall(tmp_path, **how)
    unpacked = next(path for path in tmp_path.iterdir() if path.is_dir())
    again = build(unpacked, tmp_path / "dist")
    assert again.wheel.name == distributions.wheel.name
    assert again.wheel.read_bytes() == distributions.wheel.read_bytes()


def test_an_index_takes_the_metadata(distributions: Distributions) -> None:
    # Names, versions, specifiers, licence and media type are validated here, classifiers by the back end.
    found = metadata(distributions.wheel)
    assert (found.name, found.description_content_type) == ("outbox-azure", "text/markdown")
    assert found.description is not None and found.description.startswith("# outbox")
    assert found.summary is not None and len(found.summary) <= 512


def test_what_an_index_shows_has_no_link_that_is_relative_to_a_file(distributions: Distributions) -> None:
    found = metadata(distributions.wheel).description
    assert found is not None and [link for link in links(found) if not link.is_outside] == []
    assert found.count("```") == README.count("```") and "as long as you say" in found


def test_with_an_address_links_lead_to_the_files_of_this_version_on_the_forge() -> None:
    found: dict[str, Any] = {"version": "1.2.3", "urls": {URL: "https://forge.example/us/outbox/"}}
    ReadmeHook(str(ROOT), {}).update(found)
    assert found["readme"]["content-type"] == "text/markdown"
    targets = [link.target for link in links(found["readme"]["text"])]
    head = "https://forge.example/us/outbox"
    assert (
        targets == [f"{head}/{'raw' if link.is_image else 'blob'}/v1.2.3/{link.target}" for link in links(README)]
        and f"{head}/raw/v1.2.3/docs/once.svg" in targets
    )


def test_without_an_address_a_link_is_its_text_and_a_picture_is_left_out() -> None:
    text = "![drawn](docs/a.svg)\n\n[in](docs/a.md#b), [out](https://a.example), [here](#b)\n\n```\n[x](y)\n```\n"
    assert with_whole_links(text, "") == "\nin, [out](https://a.example), [here](#b)\n\n```\n[x](y)\n```\n"


def test_the_classifiers_the_range_of_versions_and_the_set_up_name_the_same_pythons(
    distributions: Distributions,
) -> None:
    found = metadata(distributions.wheel)
    head = "Programming Language :: Python :: 3."
    minors = [int(line.removeprefix(head)) for line in found.classifiers or () if line.startswith(head)]
    assert minors == list(range(VERSION_MIN[1], VERSION_MAX[1] + 1))
    assert found.requires_python == SpecifierSet(f">=3.{minors[0]}")


def test_azure_and_spark_are_wanted_only_as_extras(distributions: Distributions) -> None:
    found = metadata(distributions.wheel)
    plain = {
        line.name for line in found.requires_dist or () if line.marker is None or line.marker.evaluate({"extra": ""})
    }
    assert plain == {"msgspec", "tenacity", "aiohttp"}
    assert set(found.provides_extra or ()) == {"azure", "completion", "otel", "pydantic", "spark"}

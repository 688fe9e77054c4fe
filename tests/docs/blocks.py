"""The code blocks of a documentation page, run in order in one namespace and one folder, as a reader would run them.

    ```python     executed; functions named `test_...` that it defines are then called, as pytest would
    ```console    lines behind "$ " are bash commands, below them their output ("..." stands for anything)
    other kinds   shown only

A Python block whose first line is `# name.py` is saved under that name and imported from there, so that later blocks
and commands find it.  `outbox run` is left running to the page's end, on a free port unless the command names one; its
connection strings become OUTBOX_SERVICEBUS and, with `--cosmos-port`, OUTBOX_COSMOS, with `--blob-port` OUTBOX_LAKE;
at the end it must drain and leave with exit code 0.  Spark's jobs run in this process, because a Java for each would
take most of the time.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from sybil.document import Document
from sybil.example import Example
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND_WITHIN_S = 60.0
APP_NAME = "docs"
_FILE_NAME = re.compile(r"# (\w+)\.py$")


@dataclass
class Page:
    """One page while its blocks run in a folder of its own."""

    path: Path
    folder: Path
    module: ModuleType = field(default_factory=lambda: ModuleType("page"))
    hosts: list[subprocess.Popen[str]] = field(default_factory=list)
    imported: list[str] = field(default_factory=list)
    block_count: int = 0

    def run(self) -> int:
        """Run every block; how many there were."""
        document = Document.parse(
            str(self.path), CodeBlockParser("python", self._python), CodeBlockParser("console", self._console)
        )
        with self._reading():
            for example in document.examples():
                example.evaluate()
                self.block_count += 1
        return self.block_count

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The folder as the current one and importable; afterwards no module and no host of the page is left."""
        before, environment = Path.cwd(), dict(os.environ)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = str(ROOT)  # the sample and the jobs are not part of the installed package
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        sys.modules["page"] = self.module
        try:
            yield
            for host in self.hosts:
                host.send_signal(signal.SIGTERM)
                assert host.wait(COMMAND_WITHIN_S) == 0, "outbox run did not drain"
        finally:
            for host in self.hosts:
                host.kill()
                host.wait()
                if host.stdout is not None:
                    host.stdout.close()
            stop_session()
            for name in (*self.imported, "page"):
                sys.modules.pop(name, None)
            sys.path.remove(str(self.folder))
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)

    # Python

    def _python(self, example: Example) -> None:
        source = str(example.parsed)
        known = dict(vars(self.module))
        name = _FILE_NAME.match(source.partition("\n")[0])
        if name is None:
            code = compile("\n" * example.line + source, str(self.path), "exec")
            exec(code, vars(self.module))
        else:
            (self.folder / f"{name[1]}.py").write_text(source)
            vars(self.module).update(self._import(name[1]))
        for found, value in list(vars(self.module).items()):
            if found.startswith("test_") and known.get(found) is not value:
                wanted = {"tmp_path": self.folder} if "tmp_path" in inspect.signature(value).parameters else {}
                asyncio.run(value(**wanted)) if inspect.iscoroutinefunction(value) else value(**wanted)

    def _import(self, name: str) -> dict[str, Any]:
        importlib.invalidate_caches()
        self.imported.append(name)
        return {key: value for key, value in vars(importlib.import_module(name)).items() if not key.startswith("__")}

    # Commands

    def _console(self, example: Example) -> None:
        for command, expected in commands(str(example.parsed)):
            given = self._answer(command)
            pattern = ".*".join(map(re.escape, expected.split("...")))
            where = f"{self.path.name}:{example.line}: $ {command}"
            assert not expected or re.fullmatch(pattern, given, re.DOTALL), f"{where}\n{given}"

    def _answer(self, command: str) -> str:
        """What a command prints; it must succeed."""
        words = shlex.split(command)
        if words[:2] == ["outbox", "run"]:
            return self._host(words)
        if words[:2] == ["python", "-m"] and words[2].startswith("spark_jobs."):
            return self._spark(words[2], words[3:])
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        return done.stdout.strip()

    def _host(self, words: list[str]) -> str:
        port = [] if "--amqp-port" in words else ["--amqp-port", "0"]
        host = subprocess.Popen([*words, *port], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.hosts.append(host)
        assert host.stdout is not None
        lines = []
        served = {"--cosmos-port": "OUTBOX_COSMOS", "--blob-port": "OUTBOX_LAKE"}
        for name in ("OUTBOX_SERVICEBUS", *(name for port, name in served.items() if port in words)):
            lines.append(host.stdout.readline().strip())
            assert lines[-1], f"$ {shlex.join(words)}: no connection string"
            os.environ[name] = lines[-1]
        return "\n".join(lines)

    @staticmethod
    def _spark(module: str, arguments: list[str]) -> str:
        said = StringIO()
        small_session()
        with redirect_stdout(said):
            code = importlib.import_module(module).main([os.path.expandvars(word) for word in arguments])
        assert code == 0, f"{module} {arguments}\n{said.getvalue()}"
        return said.getvalue().strip()


def small_session() -> None:
    """A Spark session for a few rows, if none runs: compiling code for each query would take most of the time."""
    from pyspark.sql import SparkSession

    from spark_jobs.common import java
    from spark_jobs.session import session

    if SparkSession.getActiveSession() is None:
        java.prepare(os.environ)
        conf = session(APP_NAME).conf
        conf.set("spark.sql.codegen.wholeStage", "false")
        conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        conf.set("spark.sql.shuffle.partitions", "1")
        conf.set("spark.sql.adaptive.enabled", "false")


def stop_session() -> None:
    """End the session that a page has used, so that others can start one of their own kind."""
    sql = sys.modules.get("pyspark.sql")
    running = None if sql is None else sql.SparkSession.getActiveSession()
    if running is not None and running.sparkContext.appName == APP_NAME:
        running.stop()


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown below it."""
    command = ""
    output: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, "\n".join(output).strip()
            command, output = line[2:], []
        elif command.endswith("\\"):
            command = command[:-1] + line.strip()
        else:
            output.append(line)
    if command:
        yield command, "\n".join(output).strip()

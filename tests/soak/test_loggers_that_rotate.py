"""Loggers that rotate their file, on a partition, as the table of docs/cookbook.md says.

Each logger runs twice: with a limit after which it rotates, and as the table sets it. A partition
cannot be renamed, and other files cannot be made beside it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.mounting import Mount, check_data
from tests.mount.programs import program
from tests.soak.fresh_roots import PROJECT

pytestmark = pytest.mark.soak

#: Lines of a run, of more than 25,000 bytes: lumberjack's least limit is 1 MiB.
LINES = 80
TEXT = 25_000
LIMIT = 1 << 20


class Setting(NamedTuple):
    """`command` runs in a shell, in its directory, with $LOG. `files` lie in the directory."""

    command: str
    files: dict[str, str]


class Logger(NamedTuple):
    """`rotates` is what a user has, `plain` what the table says. `left`: how many lines are in the
    partition after `rotates`, at least and at most; `says`: what it prints then.
    """

    rotates: Setting
    plain: Setting
    left: tuple[int, int]
    says: str


def python(handler: str) -> Setting:
    text = f"""
import logging, logging.handlers, os
log = logging.getLogger()
log.addHandler({handler})
for n in range({LINES}):
    log.warning("n=%d %s", n, "x" * {TEXT})
"""
    return Setting(f"{sys.executable} main.py", {"main.py": text})


def java(name: str, configuration: str, begin: str, call: str, redirect: str = "") -> Setting:
    source = f"""
class Main {{
    public static void main(String[] words) throws Exception {{
        {begin}
        for (int n = 0; n < {LINES}; n++) {call}("n=" + n + " " + "x".repeat({TEXT}));
    }}
}}"""
    file = "logging.properties" if "java.util" in name else "logging.xml"
    quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    command = f"java {quick} -D{name}={file} -cp 'jars/*' Main.java {redirect}"
    return Setting(command, {"Main.java": source, file: configuration})


def util_logging(configuration: str, redirect: str = "") -> Setting:
    begin = 'var log = java.util.logging.Logger.getLogger("main");'
    format_line = "java.util.logging.SimpleFormatter.format=%5$s%n\n"
    name = "java.util.logging.config.file"
    return java(name, configuration + format_line, begin, "log.info", redirect)


def log4j(appender: str) -> Setting:
    configuration = f"""<Configuration><Appenders>{appender}</Appenders>
    <Loggers><Root level="info"><AppenderRef ref="log"/></Root></Loggers></Configuration>"""
    begin = 'var log = org.apache.logging.log4j.LogManager.getLogger("main");'
    return java("log4j2.configurationFile", configuration, begin, "log.info")


def logback(appender: str, more: str = "") -> Setting:
    configuration = f"""<configuration>
    <statusListener class="ch.qos.logback.core.status.OnConsoleStatusListener"/>
    <appender name="log" class="ch.qos.logback.core.{appender}">
    <file>${{LOG}}</file>{more}<encoder><pattern>%m%n</pattern></encoder></appender>
    <root level="info"><appender-ref ref="log"/></root></configuration>"""
    begin = 'var log = org.slf4j.LoggerFactory.getLogger("main");'
    return java("logback.configurationFile", configuration, begin, "log.info")


def lumberjack(size: str) -> Setting:
    source = f"""package main

import (
    "fmt"
    "os"
    "strings"

    "gopkg.in/natefinch/lumberjack.v2"
)

func main() {{
    log := &lumberjack.Logger{{Filename: os.Getenv("LOG"), MaxSize: {size}}}
    for n := 0; n < {LINES}; n++ {{
        _, failure := fmt.Fprintf(log, "n=%d %s\\n", n, strings.Repeat("x", {TEXT}))
        if failure != nil {{
            fmt.Println(failure)
        }}
    }}
}}
"""
    module = "module main\n\ngo 1.19\n\nrequire gopkg.in/natefinch/lumberjack.v2 v2.2.1\n"
    command = "go mod tidy && go run ."
    return Setting(command, {"main.go": source, "go.mod": module})


def lines(into: str) -> Setting:
    text = "x" * TEXT
    command = f"i=0; while [ $i -lt {LINES} ]; do echo n=$i {text}; i=$((i+1)); done | {into}"
    return Setting(command, {})


LAYOUT = '<PatternLayout pattern="%m%n"/>'
LOGGERS = {
    "Python RotatingFileHandler": Logger(
        python(f"logging.handlers.RotatingFileHandler(os.environ['LOG'], 'a', {LIMIT}, 3)"),
        python("logging.FileHandler(os.environ['LOG'])"),
        (1, LINES - 1),
        "PermissionError: [Errno 1] Operation not permitted",
    ),
    "java.util.logging.FileHandler": Logger(
        util_logging(
            "handlers=java.util.logging.FileHandler\n"
            "java.util.logging.FileHandler.pattern=log\n"
            "java.util.logging.FileHandler.append=true\n"
            "java.util.logging.FileHandler.formatter=java.util.logging.SimpleFormatter\n"
        ),
        util_logging("handlers=java.util.logging.ConsoleHandler\n", '2>> "$LOG"'),
        (0, 0),
        "Can't load log handler",
    ),
    "log4j2 RollingFile": Logger(
        log4j(
            '<RollingFile name="log" fileName="${env:LOG}" filePattern="${env:LOG}.%i">'
            f'{LAYOUT}<SizeBasedTriggeringPolicy size="1MB"/></RollingFile>'
        ),
        log4j(f'<File name="log" fileName="${{env:LOG}}">{LAYOUT}</File>'),
        (LINES, LINES),
        "Unable to copy file",
    ),
    "logback RollingFileAppender": Logger(
        logback(
            "rolling.RollingFileAppender",
            '<rollingPolicy class="ch.qos.logback.core.rolling.FixedWindowRollingPolicy">'
            "<fileNamePattern>${LOG}.%i</fileNamePattern></rollingPolicy>"
            '<triggeringPolicy class="ch.qos.logback.core.rolling.SizeBasedTriggeringPolicy">'
            "<checkIncrement>1 millisecond</checkIncrement>"
            "<maxFileSize>1MB</maxFileSize></triggeringPolicy>",
        ),
        logback("FileAppender"),
        (LINES, LINES),
        "Failed to rename file",
    ),
    "lumberjack": Logger(
        lumberjack("1"),
        lumberjack("1 << 40"),
        (1, LINES - 1),
        "can't rename log file",
    ),
    "svlogd": Logger(
        lines('svlogd "${LOG%/*}"'), lines('cat >> "$LOG"'), (0, 0), "no functional log directories"
    ),
}


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("jars")
    pom = Path(__file__).with_name("pom-loggers.xml")
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={found}"]
    subprocess.run([program("mvn"), "-q", "-B", "-f", str(pom), *copy], check=True)
    return found


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    mount = Mount(tmp_path)
    try:
        mount.start()
        mount.topic("log")
        yield mount
        mount.stop()
    finally:
        mount.end()
    check_data(mount.data)


def run(setting: Setting, mount: Mount, jars: Path, directory: Path) -> tuple[str, list[int]]:
    """Return what a logger prints, and the lines that are in the partition then."""
    directory.mkdir()
    (directory / "jars").symlink_to(jars)
    log = mount / "log/0"
    for name, text in setting.files.items():
        (directory / name).write_text(text.replace("pattern=log\n", f"pattern={log}\n"))
    done = subprocess.run(
        ["sh", "-c", f'LOG="$1"; export LOG; {setting.command}', "sh", str(log)],
        cwd=directory,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    found = re.findall(r"^.*?\bn=(\d+) x{25000}$", log.read_text(), re.M)
    return done.stdout + done.stderr, [int(number) for number in found]


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger(
    name: str, mount: Mount, jars: Path, tmp_path: Path, figures: Callable[[str, object], None]
) -> None:
    assert f"| {name} |" in (PROJECT / "docs/cookbook.md").read_text()
    logger = LOGGERS[name]
    said, found = run(logger.rotates, mount, jars, tmp_path / "rotates")
    figures(f"of {LINES} lines of {name}", len(found))
    least, most = logger.left
    assert least <= len(found) <= most, said[-3000:]
    assert logger.says in said, said[-3000:]
    assert found == sorted(set(found)), "no line comes twice"
    (mount / "log").rmdir()
    mount.topic("log")
    said, found = run(logger.plain, mount, jars, tmp_path / "plain")
    assert found == list(range(LINES)), said[-3000:]

"""Run the collected tests in forks of this process (`--forks`), each file in one of them.

A worker of pytest-xdist imports everything and collects all tests again, which takes as much CPU as a thousand tests.
A fork starts with the collected tests. A free fork gets the next file, in the order of the collection. If a fork ends
during a test, that test fails, and another fork runs the rest of its files.
"""

import gc
import io
import multiprocessing
import os
import tempfile
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from _pytest.capture import FDCapture

from tests.support.forked import RUN_ID, ask_to_die_with_parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--forks`."""
    text = "run the tests in so many forks of this process, each file in one; only on Linux"
    parser.addoption("--forks", type=int, default=0, metavar="COUNT", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks, if the option is set."""
    config = session.config
    if not config.getoption("forks") or config.option.collectonly or session.testsfailed:
        return None
    Distributor(session).run()
    return True


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that runs tests.

    Attributes:
        remaining: Indexes of its unfinished tests, in order.
    """

    process: multiprocessing.process.BaseProcess
    channel: Connection
    remaining: deque[int]


class Distributor:
    """Gives files to forks, and reports their tests as if they had run in this process."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        files = defaultdict(list)
        for index, item in enumerate(session.items):
            files[item.nodeid.partition("::")[0]].append(index)
        self._files = deque(files.values())
        self._forks: dict[Connection, Fork] = {}

    def run(self) -> None:
        """Run all files.

        Raises:
            pytest.Session.Failed, pytest.Session.Interrupted: If the run has to stop early.
        """
        session = self._session
        os.environ[RUN_ID] = uuid.uuid4().hex
        if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
            # Files alternate, so none has a line of its own.
            reporter.showfspath = False
        # All forks use one folder. Each would create its own, which nothing removes.
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        # The collector would copy the pages of all collected tests in each fork.
        gc.collect()
        gc.freeze()
        try:
            for _ in range(min(session.config.getoption("forks"), len(self._files))):
                self._start()
            while self._forks:
                for channel in wait(list(self._forks)):
                    self._receive(self._forks[channel])
        finally:
            for fork in self._forks.values():
                fork.process.kill()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=run_in_fork, args=(self._session, theirs))
        process.start()
        theirs.close()
        self._forks[ours] = Fork(process, ours, deque())

    def _receive(self, fork: Fork) -> None:
        hook, config = self._session.config.hook, self._session.config
        has_ended, reports = False, None
        try:
            reports = fork.channel.recv()
        except (EOFError, ConnectionResetError):
            has_ended = True
        # Not in the handler: errors of a fork that is started there would show its error too.
        if has_ended:
            self._end(fork)
        elif reports is None:
            self._give_file(fork)
        else:
            read = hook.pytest_report_from_serializable
            self._report(fork, [read(config=config, data=report) for report in reports])

    def _give_file(self, fork: Fork) -> None:
        is_over = self._session.shouldfail or self._session.shouldstop or not self._files
        file = [] if is_over else self._files.popleft()
        fork.remaining.extend(file)
        fork.channel.send(file)

    def _report(self, fork: Fork, reports: list[pytest.TestReport]) -> None:
        """Report the next test of a fork."""
        item, hook = self._session.items[fork.remaining.popleft()], self._session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _end(self, fork: Fork) -> None:
        """Fail the test during which a fork ended, and start another fork for the rest."""
        del self._forks[fork.channel]
        fork.channel.close()
        fork.process.join()
        if not fork.remaining:
            return
        item = self._session.items[fork.remaining[0]]
        message = f"the process of the test ended with exit code {fork.process.exitcode}"
        self._report(fork, [pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")])
        if fork.remaining:
            self._files.appendleft(list(fork.remaining))
        if self._files:
            self._start()


def run_in_fork(session: pytest.Session, channel: Connection) -> None:
    """Run files until none is left; send the reports of each test."""
    ask_to_die_with_parent()
    config = session.config
    _separate_output(config)
    reports: list[Any] = []
    config.pluginmanager.register(Reports(config, reports))
    for item, nextitem in _given_items(session, channel):
        config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        channel.send(reports)
        reports.clear()
    channel.close()
    # A regular exit would wait for threads that tests have left behind.
    os._exit(0)


class SilentReporter(pytest.TerminalReporter):
    """Reporter of a fork, which pytest-timeout expects."""

    def pytest_runtest_logstart(self, *_: Any) -> None:
        """Print nothing."""

    def pytest_runtest_logreport(self, *_: Any) -> None:
        """Print nothing."""

    def pytest_runtest_logfinish(self, *_: Any) -> None:
        """Print nothing."""


class Reports:
    """Plugin that appends serialised reports to a list."""

    def __init__(self, config: pytest.Config, reports: list[Any]) -> None:
        self._config = config
        self._reports = reports

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append a report."""
        serialise = self._config.hook.pytest_report_to_serializable
        self._reports.append(serialise(config=self._config, report=report))


def _given_items(session: pytest.Session, channel: Connection) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Yield each test and its successor. The successor decides which fixtures end, so the next file is got early."""
    indexes: deque[int] = deque()
    while True:
        if len(indexes) < 2:
            channel.send(None)
            indexes.extend(channel.recv())
        if not indexes:
            return
        item = session.items[indexes.popleft()]
        yield item, session.items[indexes[0]] if indexes else None


def _separate_output(config: pytest.Config) -> None:
    """Capture output in files of this process, and leave the terminal to the parent."""
    manager = config.pluginmanager
    capturing = manager.get_plugin("capturemanager")
    streams = capturing._global_capturing
    for stream in (streams.out, streams.err):
        # Modules may keep the streams of the time of their import, so these continue, with a file of this process.
        if isinstance(stream, FDCapture):
            with tempfile.TemporaryFile() as file:
                os.dup2(file.fileno(), stream.tmpfile.fileno(), inheritable=False)
    capturing.resume_global_capture()
    for name in ("terminalreporter", "terminalprogress"):
        if manager.has_plugin(name):
            manager.unregister(name=name)
    manager.register(SilentReporter(config, io.StringIO()), "terminalreporter")

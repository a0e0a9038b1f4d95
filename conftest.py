"""Settings and hooks of every test run."""

import contextlib
import functools
import gc
import os
import pathlib
import re
import shutil
import ssl
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import settings

from tests.support.cluster.controlplane import SHARED_OPERATORS
from tests.support.fault_injection import check_all_effective, clear

pytest_plugins = ("tests.support.forked_tests", "tests.support.cluster.fixtures", "tests.support.web.s3_server")

# The slowest files of each suite, slowest first. Test processes get files in this order: if a slow file
# started last, the other processes would be idle at the end.
LONGEST = (
    "tests/faults/test_rebuild_faults.py",
    "tests/faults/test_restore_operator_kills.py",
    "tests/faults/test_image.py",
    "tests/faults/test_operator_kills.py",
    "tests/api/test_any_described_request.py",
    "tests/faults/test_uninstall.py",
    "tests/faults/test_beside_serving.py",
    "tests/faults/test_history.py",
    "tests/faults/test_storage_faults.py",
    "tests/faults/test_bench.py",
    "tests/faults/test_snapshot_kills.py",
    "devserver/tests/test_concurrency.py",
    "tests/faults/test_generated_specs.py",
    "tests/browser/test_views.py",
    "tests/faults/test_cluster_faults.py",
    "tests/contract/adapters/test_shard_snapshots.py",
    "tests/browser/test_hostile_texts.py",
    "tests/browser/test_tabs.py",
    "tests/browser/test_keyboard.py",
    "tests/api/test_greedy_bodies.py",
    "tests/operator/test_zone_keys.py",
    "tests/contract/restores/test_in_place.py",
    "tests/api/test_mcp.py",
    "tests/contract/collections/test_estimate.py",
    "tests/upgrade/test_rolling.py",
    "tests/upgrade/test_recorded.py",
    "tests/chart/test_monitoring.py",
    "tests/chart/test_release.py",
    "tests/faults/test_restore_kills.py",
    "tests/api/test_langgraph.py",
    "tests/faults/test_qdrant_faults.py",
    "tests/security/test_egress.py",
    "tests/contract/restores/test_restores.py",
    "tests/faults/test_writers.py",
    "tests/contract/snapshots/test_verify.py",
    "tests/contract/distillation/test_long_chains.py",
    "tests/operator/test_page_commands.py",
    "devserver/tests/test_durability.py",
    "tests/api/ui/test_ui_attacks.py",
    "tests/contract/snapshots/test_cluster_jobs.py",
    "tests/faults/test_verification_kills.py",
    "tests/operator/test_leadership.py",
    "tests/security/test_forged_status.py",
    "tests/operator/test_install.py",
    "tests/api/test_witness.py",
    "tests/api/test_dev_snapshots.py",
    "tests/faults/test_restore_faults.py",
    "tests/operator/test_rebuild_interplay.py",
    "tests/api/test_preset_examples.py",
    "tests/operator/test_runbook.py",
    "tests/faults/test_zone_keys.py",
    "tests/security/test_canary_passes.py",
    "client/tests/test_many_calls.py",
    "tests/operator/test_clusters.py",
    "tests/operator/test_dead_connections.py",
    "tests/contract/lifecycle/test_forget.py",
    "tests/operator/test_commands.py",
    "tests/contract/search/test_quantized_search.py",
    "tests/security/test_other_cluster.py",
    "tests/contract/restores/test_forged_status.py",
    "tests/unit/entrypoints/test_start.py",
    "tests/security/test_shown_state.py",
    "tests/api/ui/test_ui_safety.py",
    "tests/api/test_connections.py",
)

# Some environments forbid bytecode. Then each test process, and each program that a test starts, compiles every module.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Thousands of tests and modules stay in memory. With the default of 700, passes over them take a tenth of the
# collection.
gc.set_threshold(20_000, 20, 20)

# Qdrant writes to disk at each call. In memory this takes a third of the time and half of the CPU. A run writes at most
# 8 GB.
IN_MEMORY, ROOM_BYTES = pathlib.Path("/dev/shm"), 12 << 30


def remove_killed_runs(root: pathlib.Path) -> None:
    """Remove the files of runs that were killed before they could: their lock names a process that has ended."""
    for lock in root.glob("pytest-of-*/pytest-*/.lock"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(lock.read_text())
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                shutil.rmtree(lock.parent, ignore_errors=True)


def _has_room() -> bool:
    """Return whether the files of a test run fit into memory."""
    facts = pathlib.Path("/proc/meminfo")
    if not IN_MEMORY.is_dir() or not facts.is_file():
        return False
    [available_kib] = re.findall(r"^MemAvailable:\s+(\d+) kB$", facts.read_text(), re.MULTILINE)
    return min(int(available_kib) << 10, shutil.disk_usage(IN_MEMORY).free) > ROOM_BYTES


# Only in the process that starts the workers: they would do the same at once.
if "PYTEST_XDIST_WORKER" not in os.environ:
    remove_killed_runs(IN_MEMORY)
if _has_room():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@functools.cache
def _authorities(trust_env: bool, *_: object) -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=trust_env)


def _create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """Create the context of a client of httpx, but share one of the default certificate authorities.

    Reading them takes 20 ms of CPU, which each client and each `httpx.get` would spend, also over HTTP.
    """
    if verify is True and cert is None:
        return _authorities(trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return httpx.create_ssl_context(verify, cert, trust_env)


httpx._transports.default.create_ssl_context = _create_ssl_context

# No deadline: the duration of an example depends on the load. A failing example is printed with the line that repeats
# it. `make test-faults` draws more, with `--hypothesis-profile more`, and with THOROUGH=1, as each week, `thorough`.
settings.register_profile("gate", deadline=None, max_examples=50, print_blob=True)
settings.register_profile("more", settings.get_profile("gate"), max_examples=100)
settings.register_profile("thorough", settings.get_profile("gate"), max_examples=400)
settings.load_profile("gate")


@pytest.fixture
def on_disk() -> Iterator[pathlib.Path]:
    """Folder on a disk, where files have blocks and holes. `tmp_path` may be in memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test whose planted faults never took effect, unless the test has failed already."""
    answer = yield
    check_all_effective()
    return answer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    """Clear the planted faults of a test after its fixtures have ended."""
    try:
        return (yield)
    finally:
        clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the S3 server or Chromium. Start the slowest files first; all others keep their order.

    Files that share an operator come last, grouped by operator, so that each operator starts once.
    """
    sharing: dict[pathlib.Path, int] = {}
    for item in items:
        names = getattr(item, "fixturenames", ())
        if {"storage", "chromium"}.intersection(names):
            item.add_marker("tools")
        sharing.update((item.path, number) for number, name in enumerate(SHARED_OPERATORS, 1) if name in names)
    order = {file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: (sharing.get(item.path, 0), order.get(item.nodeid.partition("::")[0], len(order))))

"""A thousand writers of one key over three API processes; docs/writing.md has the figures."""

import pathlib

import pytest

from tests.support.web.writers import api_processes, check_chain, write_at_once

pytestmark = pytest.mark.faults


def test_a_thousand_writers_of_one_key_leave_one_unbroken_chain(tmp_path: pathlib.Path) -> None:
    with api_processes(tmp_path) as clients:
        answers, took_s = write_at_once(clients, 1000)

        check_chain(clients[0], answers)
    print(f"1,000 writers of one key over 3 processes: {took_s:.0f} s, {1000 / took_s:.0f} a second")

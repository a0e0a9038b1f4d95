"""Many writers of one key over three API processes."""

import pathlib

import pytest

from tests.support.web.writers import api_processes, check_chain, write_at_once


@pytest.mark.parametrize("writers", [100])
def test_writers_of_one_key_leave_one_unbroken_chain(tmp_path: pathlib.Path, writers: int) -> None:
    with api_processes(tmp_path) as clients:
        answers, _ = write_at_once(clients, writers)

        check_chain(clients[0], answers)

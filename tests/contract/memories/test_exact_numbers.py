"""Numbers come back bit for bit, whichever way they were stored."""

import random
from typing import Any

import pytest

from agentmemory_operator.adapters.qdrant.points import QdrantPoints
from agentmemory_operator.memories.point_pages import set_payload_operation
from tests.support.engine.agents import World, vector_of
from tests.unit.memories.rules.test_exact_numbers import CHANGED, EDGES, any_double, bits

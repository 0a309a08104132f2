"""Events are written by the engine: they share its fixtures."""

from tests.guard.conftest import make_engine as make_engine

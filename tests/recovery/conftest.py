"""The engine of the guard's tests."""

from ..guard.conftest import make_engine as make_engine

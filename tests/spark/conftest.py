"""Fixtures of the data source's tests; those of Spark's own are the replay's."""

from tests.replay.conftest import own_java, place, pytest_collection_modifyitems, store  # noqa: F401  fixtures

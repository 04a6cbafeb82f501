"""Fixtures of the data source's tests; those of Spark's own are the replay's."""

from tests.replay.conftest import (  # noqa: F401  fixtures
    _java_of_the_session,
    java_if_needed,
    own_java,
    place,
    pytest_collection_modifyitems,
    shared_java,
)

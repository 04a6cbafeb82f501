"""The table of clients in the emulator's README against the abilities of the table in driver.py."""

from tests.clients import matrix
from tests.clients.driver import ABILITIES, CLIENTS


def test_the_document_has_what_each_client_does() -> None:
    """A run with WRITE_MATRIX=1 writes it; an ability that a run did not show is missing there."""
    [table] = matrix.PLACE.findall(matrix.DOCUMENT.read_text())
    assert table == matrix.table(lambda client, ability: ability in client.does)


def test_only_what_all_tests_have_passed_is_an_ability() -> None:
    client = CLIENTS[0]
    outcomes = {
        f"a/test_clients.py::test_x[{client.name}: tcp accept]": "passed",
        f"a/test_clients.py::test_x[{client.name}: tls accept]": "failed",
    }
    does = matrix.tested(outcomes)
    assert {ability for ability in ABILITIES if does(client, ability)} == {"tcp"}

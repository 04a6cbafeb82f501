"""That the Spark of the `spark` extra does on this machine what the bulk replay is going to ask of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.java


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # PySpark's own
def test_python_workers_take_and_give_arrow_batches(spark: Any) -> None:
    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    counted = spark.range(0, 1_000, 1, 4).mapInArrow(count, "rows long").collect()

    assert sum(row.rows for row in counted) == 1_000

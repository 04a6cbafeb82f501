"""Results of `sbpair syphon`, `move` and `redrive`."""

from typing import Annotated

from sbpair.cli.commands.pair_answers import PairEntry
from sbpair.model.document import SPREAD, document
from sbpair.syphon.run_result import SyphonResult


@document("sbpair/syphon/1")
class SyphonReceipt:
    """The receipt of sbpair syphon."""

    result: Annotated[SyphonResult, SPREAD]
    next_commands: Annotated[tuple[str, ...], "Commands to go on with"]


@document("sbpair/move/1")
class MoveReceipt(SyphonReceipt):
    """The receipt of sbpair move and redrive. The backlog is the source here, and the primary the destination."""


@document("sbpair/syphon-pairs/1", "pairs")
class SyphonPairs:
    """The receipts of sbpair syphon --all-pairs."""

    pairs: Annotated[tuple[PairEntry[SyphonReceipt], ...], "Pairs of the file"]

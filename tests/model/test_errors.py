"""The error tree: its docstring, its classes and the exit codes say the same."""

import re

from sbpair import errors

LINE = re.compile(r"^[\s│├└─]*(?P<name>[A-Z]\w+)\s+(?P<code>\d+)", re.MULTILINE)
MEANINGS = {1: "bug", 2: "usage", 3: "partial", 4: "unsafe", 5: "access", 6: "unavailable", 7: "machine"}


def classes() -> dict[str, type[errors.SbpairError]]:
    found = vars(errors).values()
    return {each.__name__: each for each in found if isinstance(each, type) and issubclass(each, errors.SbpairError)}


def test_the_docstring_names_every_class_with_its_exit_code() -> None:
    told = {match["name"]: int(match["code"]) for match in LINE.finditer(errors.__doc__ or "")}
    assert told == {name: each.exit_code for name, each in classes().items()}


def test_the_docstring_shows_the_tree_of_classes() -> None:
    ancestors: list[tuple[int, str]] = []
    for match in LINE.finditer(errors.__doc__ or ""):
        depth = match.start("name") - match.start()
        ancestors = [each for each in ancestors if each[0] < depth]
        if ancestors:
            assert classes()[match["name"]].__base__ is classes()[ancestors[-1][1]]
        ancestors.append((depth, match["name"]))


def test_every_exit_code_has_one_meaning() -> None:
    direct = [each for each in classes().values() if each.__base__ is errors.SbpairError]
    assert {each.exit_code for each in classes().values()} <= MEANINGS.keys()
    # ProtocolError shares 6 with Unavailable: whoever cannot be understood cannot be reached either.
    # A run that stopped before its end is as partial as a refused one.
    partial = (
        errors.SkipLimitReached,
        errors.DestinationsMissing,
        errors.WouldDiscard,
        errors.JobCancelled,
        errors.RampStopped,
    )
    shared = (errors.ProtocolError, *partial)
    codes = [each.exit_code for each in direct if each not in shared]
    assert len(codes) == len(set(codes))


def test_a_subclass_has_the_exit_code_of_its_parent() -> None:
    for each in classes().values():
        if each.__base__ is not errors.SbpairError and each is not errors.SbpairError:
            assert each.exit_code == each.__base__.exit_code


def test_only_unavailable_errors_are_retriable() -> None:
    retriable = {each for each in classes().values() if each.retriable}
    assert retriable == {each for each in classes().values() if issubclass(each, errors.Unavailable)}


def test_every_error_takes_a_message_and_a_hint() -> None:
    for each in classes().values():
        error = each("what", hint="do")
        assert (str(error), error.message, error.hint) == ("what", "what", "do")

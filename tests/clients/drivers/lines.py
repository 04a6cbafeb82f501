"""Requests as JSON lines on standard input, answers as JSON lines on standard output."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def serve(operations: Mapping[str, Callable[..., Any]]) -> None:
    """Answer {"do": name, ...its arguments} with {"result": …} or {"error": …}, until standard input ends.

    What a library prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": operations[request.pop("do")](**request)}
        except Exception as error:  # noqa: BLE001  # the test judges it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # a library may wait for its threads

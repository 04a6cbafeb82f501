"""Completions as each shell reads them: typer's, with whole descriptions."""

from typing import Any

from typer import _completion_classes as typers


class _WholeWords:
    """Shells that replace the whole word: the values of `--option=v` have the option, too."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        items: list[Any] = super().get_completions(args, incomplete)  # type: ignore[misc]
        option, equals, _ = incomplete.partition("=")
        for item in items if equals and option.startswith("--") else ():
            item.value = f"{option}={item.value}"
        return items


class _Bash(typers.BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words, without the `=` that bash makes a word of its own in `--option=value`."""
        args, incomplete = super().get_completion_args()
        joins = ["=" if before.startswith("--") else None for before in ["", *args]]
        return [word for word, join in zip(args, joins, strict=False) if word != join], incomplete


class _Zsh(_WholeWords, typers.ZshComplete):
    def format_completion(self, item: Any) -> str:
        def quoted(text: str) -> str:
            # Zsh evaluates it within single quotes, and then reads it within double quotes.
            for old, new in (('"', '""'), ("'", "'\\''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
                text = text.replace(old, new)
            return f'"{text}"'

        return ":".join(map(quoted, filter(None, (item.value, item.help))))


class _Fish(_WholeWords, typers.FishComplete):
    def format_completion(self, item: Any) -> str:
        return f"{item.value}\t{' '.join(item.help.split())}" if item.help else str(item.value)


class _PowerShell(_WholeWords, typers.PowerShellComplete):
    def format_completion(self, item: Any) -> str:
        return f"{item.value}:::{item.help or ' '}"


def register() -> None:
    """Use these classes for the shells."""
    classes = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish, "powershell": _PowerShell, "pwsh": _PowerShell}
    for name, kind in classes.items():
        typers.add_completion_class(kind, name)  # type: ignore[attr-defined]

"""`sbpair completions`: prints the script that lets a shell complete commands, options and names."""

from sbpair.cli.completion import SCRIPTS, shipped_script
from sbpair.cli.options.common import argument
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError


def _shells() -> list[str]:
    return list(SCRIPTS)


def command(
    *, shell: str = argument("SHELL", "bash, zsh, fish or powershell", complete=_shells), screen: Screen
) -> int:
    """Print the script that completes commands and names in a shell.

    The wheel installs the scripts of bash, zsh and fish in share/. If the shell does not look there, store the output
    where it looks, in a directory that exists, or evaluate it when the shell starts.

    Examples:
      sbpair completions bash > ~/.local/share/bash-completion/completions/sbpair
      sbpair completions fish > ~/.config/fish/completions/sbpair.fish
      sbpair completions zsh > ~/.zfunc/_sbpair   # with ~/.zfunc in fpath
      sbpair completions powershell >> $PROFILE

    See also: sbpair man --help
    """
    if shell not in SCRIPTS:
        raise UsageError(f"there are no completions for {shell!r}", hint=f"choose one of {', '.join(SCRIPTS)}")
    script = shipped_script(shell)
    screen.result("sbpair/completions/1", {"shell": shell, "script": script}, [script.rstrip("\n")])
    return 0

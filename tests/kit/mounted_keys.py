"""Keys in files as Kubernetes mounts them, and their rotation: the namespace has another key, then the file."""

from dataclasses import replace
from pathlib import Path

from sbpair.emulator.entities.namespace import Namespace


class MountedKey:
    """The file `path` is a link through `..data`, which an update replaces by a rename."""

    def __init__(self, folder: Path, namespace: Namespace, more: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.namespace, self._more = folder, namespace, more
        self._number = 0
        self.path = folder / "key"
        self.update()
        self.path.symlink_to("..data/key")

    def write(self, text: str) -> None:
        self._number += 1
        version = self.folder / f"..{self._number}"
        version.mkdir()
        (version / "key").write_text(text)
        link = self.folder / "..data_tmp"
        link.symlink_to(version.name)
        link.replace(self.folder / "..data")

    def update(self) -> None:
        """Let the file have the namespace's present key."""
        self.write(f"{self.namespace.connection_string}{self._more}\n")

    def regenerate(self, *, and_file: bool = True) -> None:
        """Give the namespace's rule new keys, and by default the file, before it."""
        [rule] = self.namespace.keys
        keys = (f"{rule.primary_key[:20]}{self._number}{name}" for name in ("primary", "secondary"))
        new = replace(rule, primary_key=next(keys), secondary_key=next(keys))
        self.namespace.keys = (new,)
        if and_file:
            self.update()

"""Builds wheels with the native library in them, for every instruction set of such a machine."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def load_build(root: str) -> Any:
    """Load `paceline.native.build` without the package, whose dependencies are not here."""
    path = Path(root) / "src/paceline/native/build.py"
    spec = importlib.util.spec_from_file_location("native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NativeLibrary(BuildHookInterface):
    """Editable installs get none: theirs are compiled on first use, and after a change."""

    def dependencies(self) -> list[str]:
        wanted = self.target_name == "wheel" and not load_build(self.root).has_compiler()
        return ["ziglang"] if wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        folder = Path(self.directory) / "native"
        shutil.rmtree(folder, ignore_errors=True)
        for level, error in load_build(self.root).compile_all(folder).items():
            self.app.display_warning(f"no native library for {level}: {error}")
        build_data["pure_python"] = False
        # The library is loaded by ctypes: any Python 3 will do.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(folder)] = "paceline/native/lib"

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        shutil.rmtree(Path(self.directory) / "native", ignore_errors=True)

"""Small errors in what compiled kernels are valid for: see `tests.mutation.outside`.

    python -m tests.mutation.compiled

Left out because only other versions of Weir, NumPy or Numba would show them: `schemas/compiled.py` itself, or a
version, left out of the stamp.
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

COMPILED: dict[str, tuple[tuple[str, str], ...]] = {
    "schemas/compiled.py": (
        ("cache._impl.filename_base, valid_for)", 'cache._impl.filename_base, "")'),
        (" if owner == package]", " if owner == file]"),
        ("whole.update(name.encode() + digest)", "whole.update(name.encode())"),
        ("    waiting = [__file__, file]\n", "    waiting = [__file__]\n"),
        ("            waiting += [", "            waiting = ["),
    ),
    "schemas/kernel_files.py": (
        ("{stamp[:16]}", ""),
        ("os.replace(file.name, path)", "path.write_bytes(Path(file.name).read_bytes()[:99])"),
        ("hashlib.sha256(repr(key).encode()).hexdigest()[:16]", "1"),
        ("if not other.name.startswith(self._current):", "if True:"),
        ("if not other.name.startswith(self._current):", "if False:"),
        ("        except OSError:\n            return\n", "        finally:\n            pass\n"),
        ("                    os.unlink(file.name)\n", "                    pass\n"),
        ("(OSError, EOFError, ValueError, pickle.UnpicklingError)", "(OSError, ValueError, pickle.UnpicklingError)"),
        ("(OSError, EOFError, ValueError, pickle.UnpicklingError)", "(OSError, EOFError, ValueError)"),
        ("data if found == key else None", "data"),
        ("            path.unlink(missing_ok=True)\n", "            pass\n"),
        ('self._kernel = f"{kernel}."', "self._kernel = kernel"),
    ),
}

TESTS = {file: ["tests/schemas/test_compiled.py"] for file in COMPILED}

if __name__ == "__main__":
    sys.exit(1 if survivors(COMPILED, TESTS, sys.argv[1:]) else 0)

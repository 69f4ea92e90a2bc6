"""Small errors in what compiled kernels are valid for: see `tests.mutation.outside`.

    python -m tests.mutation.compiled

Left out because only other versions of Weir or NumPy would show them: this file itself, or NumPy's version, left out of
the stamp.
"""

from __future__ import annotations

import sys

from tests.mutation.outside import survivors

COMPILED: dict[str, tuple[tuple[str, str], ...]] = {
    "schemas/compiled.py": (
        ("        cache_file._source_stamp = stamp(function.__code__.co_filename, package)\n", "        pass\n"),
        (" if owner == package]", " if owner == file]"),
        ("whole.update(name.encode() + digest)", "whole.update(name.encode())"),
        ("    waiting = [__file__, file]\n", "    waiting = [__file__]\n"),
        ("            waiting += [", "            waiting = ["),
    ),
}

TESTS = {"schemas/compiled.py": ["tests/schemas/test_compiled.py"]}

if __name__ == "__main__":
    sys.exit(1 if survivors(COMPILED, TESTS, sys.argv[1:]) else 0)

"""Errors in how what cannot be spilled counts against a memory budget, by file; see `tests.mutation.mutants`."""

from __future__ import annotations

FIXED_MEMORY: dict[str, tuple[tuple[str, str], ...]] = {
    "kernels/pages.py": (
        ("self._rings[self._fixed] = self._in_memory[self._fixed] = size", "self._in_memory[self._fixed] = size"),
        ("        weakref.finalize(self, self._rings.pop, self._fixed, None).atexit = False\n", ""),
    ),
    "spill/spilling.py": (("self._eviction.waiting_bytes + self._fixed()", "self._eviction.waiting_bytes"),),
    "engine/engine.py": (
        ("            self._memory.fixed_bytes = self._fixed_bytes()\n", "            pass\n"),
        ("return tables + self._intake.repeats_bytes() + self.beside_bytes", "return tables + self.beside_bytes"),
        ("return tables + self._intake.repeats_bytes() + self.beside_bytes", "return tables"),
    ),
    "groups/engine.py": (("        self._divide_fixed()\n", ""),),
    "groups/budget.py": (("return self._of_operator() + self._spill.beside_bytes", "return self._of_operator()"),),
    "spill/worker_memory.py": (
        ("self.used_bytes = self.memory.rings[self.number] = size_bytes", "self.used_bytes = size_bytes"),
        ("        self.rings.pop(share.number, None)\n", ""),
    ),
    "distributed/intake.py": (("            self._share.hold(self._used_bytes())\n", "            pass\n"),),
}

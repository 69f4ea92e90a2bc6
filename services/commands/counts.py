"""Numbers of things in messages."""

from __future__ import annotations


def counted(number: float, thing: str) -> str:
    """`number`, rounded, and the noun `thing`, in the plural unless it is one: "1 tuple", "2,000 tuples"."""
    shown = f"{number:,.0f}"
    return f"{shown} {thing}" if shown == "1" else f"{shown} {thing}s"

"""Commands that look at a query and change nothing: `weir explain`, `weir decisions`, `weir ui` and `weir top`."""

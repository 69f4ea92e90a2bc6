"""Query groups: several queries over the same input streams, in one engine.

The entry is `engine.GroupEngine`. `sharing` decides which queries share one operator (`operators.juggler`), and
`standalone` runs the others. `budget` divides the memory budget among them.
"""

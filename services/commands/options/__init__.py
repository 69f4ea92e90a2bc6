"""The options that several commands have: written once, given to a command as parameters or as one object."""

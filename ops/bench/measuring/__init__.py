"""How benchmarks measure and show: runs and their spread (`measure`), tables (`report`), charts (`figures`)."""

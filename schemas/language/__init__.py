"""The query language: text to the bound model of `schemas.query`. Entry: `program.parse_program`.

`grammar.lark` defines the syntax; `binder` and the modules that it imports resolve names and check types;
`syntax_errors` explains what is wrong with a text that the grammar refuses. To add a clause: extend the grammar, bind
the clause in `clauses`, and add its refusals to `tests/schemas`. To add a scalar function: `ops/docs/architecture.md`.
"""

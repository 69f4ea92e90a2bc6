"""The query language: text to the bound model of `schemas.query`. Entry: `program.parse_program`.

`grammar.lark` says what a text may look like; `binder` and the modules below it resolve names and check types;
`syntax_errors` says what is wrong with a text that the grammar refuses. To add a clause: extend the grammar, bind it in
`clauses`, and add its refusals to `tests/schemas`.
"""

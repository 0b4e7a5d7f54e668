"""Defines the commands, one in each file: `add_parser` adds the command to the parser, `run` runs it.

A new command is a new file here and an entry of `cli.parser.COMMANDS`. Code that commands share is in
`cli.common`, `cli.argument_parser` and `cli.option_types`.
"""

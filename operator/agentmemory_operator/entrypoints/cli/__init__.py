"""The command line: a package for each group of `agentmemory --help`, a module for each command or family of commands.

A module `*_view` renders what a command has read. Modules of this package are shared by several groups, except
`servers`, which has the commands that run a server.
"""

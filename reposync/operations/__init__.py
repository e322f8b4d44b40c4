"""What can be done and asked: one function each, of the application, the actor and the arguments.

An operation decides who may do it, checks the state, fills in the settings, and returns one document, or raises an
error that carries next steps as values. Command line, HTTP, pages and the tools for agents parse, call an operation and
print its document; they use nothing below this package.
"""

"""What goes into a ticket: a bundle of all that pdctl can see, and a report that people read.

:mod:`.collect` makes a bundle, :mod:`.hide` takes names out of it. :mod:`.gather` reads a bundle or a trace for a report, which
:mod:`.page` writes as HTML and :mod:`.brief` as Markdown.
"""

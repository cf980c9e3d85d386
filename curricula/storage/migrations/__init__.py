"""The history of the library's tables, as Alembic scripts.

A change of the tables is a new script in ``versions``, its number as ``REVISION`` of
:mod:`roleagent.curricula.storage.schema`, and the tables as they are now in :mod:`roleagent.curricula.storage.tables`.
Scripts that have been released are never changed.
"""

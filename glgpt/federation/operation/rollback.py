"""Rolls back a session to the checkpoint of an earlier round. The session must not be running."""

from __future__ import annotations

import shutil

from glgpt.errors import ArgumentError, FileError, quoted
from glgpt.federation.rounds.rounds import OPEN, SPOOL
from glgpt.federation.serve import SUPERLINK, end_leftovers
from glgpt.federation.session import Files
from glgpt.system.locks import lock_folder
from glgpt.training.run_folder import RunFolder


def roll_back(files: Files, rounds: int) -> int:
    """Undoes the last `rounds` rounds of a session. Returns the number of the last remaining round.

    Deletes the records of the undone rounds, the updates of an open round and SuperLink's database. The checkpoint is
    replaced last, so that an interrupted rollback can be repeated. If it is repeated, the undone rounds may count twice
    for the privacy budget: the reported epsilon may be too high, but never too low. Raises ArgumentError if the
    checkpoint of the last remaining round was not retained, and FileError if a file is damaged or the session is being
    served. In these cases, nothing is undone.
    """
    unlock = lock_folder(files.folder)
    if unlock is None:
        raise FileError(f"{quoted(files.run, 300)} is being served by another process; stop it first")
    try:
        end_leftovers(files)
        kept = files.kept_rounds()
        try:
            done = files.round_of()
        except FileError:
            if not kept:
                raise
            done = kept[-1] + 1  # the damaged checkpoint is of the round after the last retained one
        number = done - rounds
        if number not in kept:
            possible = " or ".join(str(done - k) for k in reversed(kept))
            has = f"checkpoints for --rollback {possible}" if possible else "no checkpoint of an earlier round yet"
            raise ArgumentError(
                f"--rollback {rounds}: {quoted(files.run, 300)} has finished {done} rounds and has {has}"
            )
        session = files.session()
        # Each of these two lines raises FileError if the file that it reads is damaged.
        files.checkpoint(files.kept(number))
        files.undone_rounds()
        for site in range(session.gateways):
            folder = Files(files.run, site).site_folder
            (folder / OPEN).unlink(missing_ok=True)
            shutil.rmtree(folder / SPOOL, ignore_errors=True)
        for path in files.folder.glob(f"{SUPERLINK}*"):
            path.unlink()
        with RunFolder(files.run) as run:
            run.rewind(max(0, session.first_step(number + 1) - 1))  # `serve` then evaluates round `number` again
        files.keep_notes(number)
        files.count_undone(rounds)
        files.go_back(number)
    finally:
        unlock()
    return number

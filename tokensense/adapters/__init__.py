"""Our credit rules in others' trainers; each adapter imports its host only when it is used."""

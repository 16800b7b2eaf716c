"""English words that say how a sentence goes on rather than what it is about.

Reads  nothing.
Gives  sets of lower-case words with straight apostrophes, used by `kinds`.

DISCOURSE: marks of order, turn and inference in reasoning, and hedges. OPENERS: words that are such
marks only where they open a sentence or stand before a comma. SPEECH: verbs that are such marks
only of the writer (`I think`, `Suppose that`). FUNCTION: articles, pronouns, prepositions,
conjunctions, auxiliaries, quantifying determiners, adverbs of degree.

A list in quotes takes a tenth of the lines of a list literal, hence the exceptions to SIM905.

Source: closed classes of English grammar; marks and hedges after Hyland, Metadiscourse (2005).
"""

DISCOURSE = frozenset(
    """
    so then now therefore thus hence consequently accordingly however nevertheless nonetheless
    alternatively actually maybe perhaps probably possibly presumably apparently seemingly seems
    seem likely might wait hmm hm huh oh ah okay ok alright anyway indeed clearly obviously
    basically essentially finally lastly firstly secondly thirdly fourthly similarly likewise
    moreover furthermore additionally meanwhile otherwise overall unfortunately surely certainly
    let let's lets conversely subsequently ultimately
    """.split()  # noqa: SIM905
)
OPENERS = frozenset(
    """
    first second third fourth fifth sixth last next well right yes no again sorry alas instead also
    """.split()  # noqa: SIM905
)
COMMA_OPENERS = frozenset("well right yes no again last sorry instead".split())  # noqa: SIM905
# Words before a verb of the writer's own: "we first find", "I think", "let's assume".
SPEAKERS = frozenset("i we you us me let's to must should can will".split())  # noqa: SIM905
SPEECH = frozenset(
    "think guess suppose assume assuming believe note notice remember recall".split()  # noqa: SIM905
)
FUNCTION = frozenset(
    """
    a an the this that these those i you he she it we they me him her us them my your his its our
    their mine yours hers ours theirs myself yourself himself herself itself ourselves themselves
    who whom whose which what when where why how whatever whichever there here
    and or but nor yet for if unless because since although though while whereas whether as than
    of in on at by to from with without within into onto upon about above below under over between
    among through during before after until till against along across around behind beside besides
    beyond despite down up off out near per toward towards via except including regarding like
    am is are was were be been being do does did doing done have has had having can could will
    would shall should may must ought cannot can't won't
    each every all any some both either neither none no not only just also too very quite rather
    almost even still already again ever never always often more most less least much many few
    fewer several such other others another same own enough else once later instead exactly
    simply directly together respectively thereby so
    """.split()  # noqa: SIM905
)
# What is left of a contraction that is an auxiliary or a negation: they've, he'll, it's, don't.
ENDINGS = ("'s", "'re", "'ve", "'ll", "'d", "'m", "n't")
PHRASES = (
    "for example",
    "for instance",
    "in other words",
    "in conclusion",
    "in summary",
    "in fact",
    "of course",
    "as a result",
    "on the other hand",
    "let me",
    "let us",
    "i guess",
    "i think",
)
# Words after which a single letter before them was a name, not an article: "a is", "A and B".
AFTER_A_NAME = frozenset("is are was has and or to equals be in as from by with".split())  # noqa: SIM905
UNITS = frozenset("mghskLl")

"""Every credit rule by name: what it reads, where it comes from, how well it is known.

Gives  CATALOGUE: name -> Credit. Formulas, departures and settings stand beside the functions.
"""

from tokensense.credit import (
    contrastive,
    cscr,
    delta,
    modulation,
    optimal,
    outcome,
    self_distillation,
    uncertainty,
)
from tokensense.credit.base import Budget, Credit, Direct, Form, Grade, Weigh, by_weight


def _times(weigh: Weigh, needs: str, source: str, *, grade: Grade, budget: Budget) -> Credit:
    """A rule that multiplies the advantage."""
    return by_weight(
        weigh, needs=frozenset(needs.split()), source=source, grade=grade, budget=budget
    )


def _other(
    give: Weigh, needs: str, source: str, *, form: Form, grade: Grade, **kept: bool
) -> Credit:
    """A rule that does something else to it; it may turn its sign unless it says otherwise."""
    declared = {"keeps_sign": False} | kept
    return Credit(Direct(give), frozenset(needs.split()), form, source, "free", grade, **declared)


_CONTROL = "own control of arXiv:2607.27888 (methods/cscr.md section 5.8)"
_DELTA = "DelTA, arXiv:2605.21467"
_GCPO = "GCPO, arXiv:2605.29198"

CATALOGUE: dict[str, Credit] = {
    # outcome
    "uniform": _times(
        outcome.uniform, "", "GRPO, arXiv:2402.03300", grade="certain", budget="rollout"
    ),
    "step": _times(outcome.step, "step", "baseline", grade="own", budget="rollout"),
    "random": _times(outcome.Random(), "key", "control", grade="own", budget="rollout"),
    "oracle": _times(outcome.Oracle(), "planted", "ceiling", grade="own", budget="sign"),
    "vine": _other(
        outcome.vine,
        "value_gain",
        "VinePPO, arXiv:2410.01679",
        form="replaces",
        grade="second-hand",
        signal_without_contrast=True,
    ),
    "span_drop": _times(
        outcome.SpanDrop(),
        "span_drop",
        "Beyond Uniform Credit, arXiv:2602.09331",
        grade="code",
        budget="rollout",
    ),
    "oar_p": _times(
        outcome.Oar(), "answer_kl", "OAR, arXiv:2601.07408", grade="code", budget="rollout"
    ),
    "oar_g": _times(
        outcome.OarGradient(),
        "answer_saliency",
        "OAR, arXiv:2601.07408",
        grade="code",
        budget="rollout",
    ),
    "nthr": _times(
        outcome.Nthr(),
        "group right_influence",
        "NTHR, arXiv:2505.18830",
        grade="second-hand",
        budget="bounded",
    ),
    "ktae": _other(
        outcome.Ktae(), "group token_id", "KTAE, arXiv:2505.16826", form="adds", grade="inferred"
    ),
    # cscr
    "cscr": _times(
        cscr.Cscr(), "z_neg z_pos", "CSCR, arXiv:2607.27888", grade="inferred", budget="rollout"
    ),
    "cscr_shuffled": _times(
        cscr.Shuffled(), "key z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_surprisal": _times(
        cscr.SurprisalMatched(), "logp z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_entropy": _times(
        cscr.EntropyMatched(), "entropy z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_gradient_norm": _times(
        cscr.GradientNormMatched(), "distance z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_common": _times(
        cscr.CommonOnly(), "z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_contrast": _times(
        cscr.ContrastOnly(), "z_neg z_pos", _CONTROL, grade="own", budget="rollout"
    ),
    "cscr_placebo": _times(
        cscr.Placebo(),
        "placebo_neg placebo_pos z_neg z_pos",
        _CONTROL,
        grade="own",
        budget="rollout",
    ),
    # self_distillation
    "opsd": _other(
        self_distillation.opsd,
        "reference",
        "OPSD, arXiv:2601.18734",
        form="replaces",
        grade="code",
        signal_without_contrast=True,
    ),
    "sdpo": _other(
        self_distillation.sdpo,
        "sibling_pos",
        "SDPO, arXiv:2601.20802",
        form="replaces",
        grade="code",
        signal_without_contrast=True,
    ),
    "rlsd": _times(
        self_distillation.Rlsd(),
        "answer_pos",
        "RLSD, arXiv:2604.03128",
        grade="code",
        budget="bounded",
    ),
    "cepo": _times(
        self_distillation.Cepo(),
        "answer_neg answer_pos",
        "CEPO, arXiv:2605.19436",
        grade="code",
        budget="bounded",
    ),
    "cal_opd": _other(
        self_distillation.CalOpd(),
        "teacher teacher_neg teacher_pos",
        "Cal-OPD, arXiv:2609.21619",
        form="replaces",
        grade="code",
        signal_without_contrast=True,
    ),
    "ps_opd": _times(
        self_distillation.PsOpd(),
        "teacher_neg",
        "PS-OPD, OPD_Forge",
        grade="inferred",
        budget="bounded",
    ),
    "sd_grpo": _other(
        self_distillation.sd_grpo,
        "z_neg z_pos",
        "SD-GRPO, an ablation of arXiv:2607.27888",
        form="replaces",
        grade="inferred",
    ),
    "cort": _times(
        self_distillation.Cort(),
        "rubric",
        "CoRT, arXiv:2607.25659",
        grade="inferred",
        budget="rollout",
    ),
    "distilled_rl": _times(
        self_distillation.DistilledRl(),
        "teacher",
        "Distilled RL, arXiv:2607.17247",
        grade="inferred",
        budget="bounded",
    ),
    "sc_grpo": _times(
        self_distillation.sc_grpo,
        "sibling_pos",
        "SC-GRPO, arXiv:2606.18810",
        grade="inferred",
        budget="rollout",
    ),
    # contrastive
    "gcpo": _times(contrastive.Gcpo(), "negative_prompt", _GCPO, grade="code", budget="rollout"),
    "gcpo_absolute": _times(
        contrastive.GcpoAbsolute(), "negative_prompt", _GCPO, grade="code", budget="rollout"
    ),
    "gcpo_both": _times(
        contrastive.GcpoBoth(), "negative_prompt", _GCPO, grade="code", budget="rollout"
    ),
    "gcpo_gain": _times(
        contrastive.GcpoGain(), "negative_prompt", _GCPO, grade="code", budget="rollout"
    ),
    "gcpo_softmax": _times(
        contrastive.GcpoSoftmax(), "negative_prompt", _GCPO, grade="inferred", budget="rollout"
    ),
    "gcpo_minmax": _times(
        contrastive.GcpoMinMax(), "negative_prompt", _GCPO, grade="code", budget="rollout"
    ),
    "sibling": _times(
        contrastive.sibling,
        "sibling_neg sibling_pos",
        "popular accounts of arXiv:2605.29198",
        grade="inferred",
        budget="rollout",
    ),
    "rlcsd": _other(
        contrastive.Rlcsd(),
        "sibling_neg sibling_pos",
        "RLCSD, arXiv:2606.11709",
        form="adds",
        grade="code",
        keeps_sign=True,
    ),
    "position_alignment": _times(
        contrastive.position_alignment,
        "group token_id",
        "baseline of `sibling`",
        grade="own",
        budget="rollout",
    ),
    "diff_alignment": _times(
        contrastive.diff_alignment,
        "group token_id",
        "baseline of `sibling`",
        grade="own",
        budget="rollout",
    ),
    # optimal
    "optw": _times(
        optimal.Optw(),
        "distance",
        "methods/gcpo_and_optimal_weights.md 2.6",
        grade="own",
        budget="rollout",
    ),
    "vcore": _times(
        optimal.Vcore(),
        "learning_value",
        "VCORE, arXiv:2510.27462",
        grade="second-hand",
        budget="rollout",
    ),
    "entropic_budget": _times(
        optimal.EntropicBudget(),
        "learning_value",
        "VCORE's problem, arXiv:2510.27462",
        grade="own",
        budget="rollout",
    ),
    # uncertainty
    "high_entropy": _times(
        uncertainty.HighEntropy(),
        "entropy",
        "80/20, arXiv:2506.01939",
        grade="code",
        budget="bounded",
    ),
    "gtpo": _times(
        uncertainty.Gtpo(),
        "entropy",
        "retrain, after GTPO, arXiv:2508.04349",
        grade="code",
        budget="rollout",
    ),
    "gtpo_group": _times(
        uncertainty.gtpo_group,
        "entropy group",
        "GTPO, arXiv:2508.04349",
        grade="inferred",
        budget="batch",
    ),
    "ar": _times(uncertainty.Ar(), "logp", "AR, arXiv:2505.12929", grade="code", budget="bounded"),
    "dgpo": _times(
        uncertainty.Dgpo(),
        "entropy hellinger",
        "DGPO, arXiv:2605.03327",
        grade="second-hand",
        budget="rollout",
    ),
    "stare": _times(
        uncertainty.Stare(),
        "entropy logp",
        "STARE, arXiv:2606.19236",
        grade="code",
        budget="bounded",
    ),
    "a3po": _times(
        uncertainty.A3po(), "logp", "A3PO, ACL 2026", grade="inferred", budget="bounded"
    ),
    "covariance": _times(
        uncertainty.Covariance(),
        "logp",
        "Covariance-aware GRPO, ACL 2026",
        grade="second-hand",
        budget="batch",
    ),
    "tr_grpo": _times(
        uncertainty.TrGrpo(),
        "logp",
        "TR-GRPO, arXiv:2511.00066",
        grade="inferred",
        budget="bounded",
    ),
    # modulation
    "erpo": _other(
        modulation.Erpo(),
        "drift entropy group",
        "ERPO, arXiv:2603.28204",
        form="adds",
        grade="inferred",
    ),
    "ep_grpo": _other(
        modulation.EpGrpo(),
        "drift entropy group",
        "EP-GRPO, arXiv:2605.04960",
        form="adds",
        grade="inferred",
    ),
    "lampo": _other(
        modulation.Lampo(),
        "group logp reward",
        "LamPO, arXiv:2605.21235, withdrawn",
        form="replaces",
        grade="inferred",
    ),
    "htpo": _other(
        modulation.Htpo(),
        "entropy group ratio reward",
        "HTPO, arXiv:2605.08283",
        form="clips",
        grade="code",
    ),
    "otb": _other(
        modulation.otb,
        "distance group reward",
        "OTB, arXiv:2602.07078",
        form="replaces",
        grade="code",
        signal_without_contrast=True,
    ),
    # delta
    "delta": _times(delta.Delta(), "row_gradient", _DELTA, grade="certain", budget="batch"),
    "delta_hidden": _times(
        delta.HiddenGradient(), "hidden_gradient", _DELTA, grade="second-hand", budget="batch"
    ),
    "delta_hard": _times(delta.Hard(), "row_gradient", _DELTA, grade="certain", budget="batch"),
    "delta_unnormalized": _times(
        delta.Unnormalized(), "row_gradient", _DELTA, grade="certain", budget="bounded"
    ),
    "delta_within": _times(
        delta.WithinSide(), "row_gradient", _DELTA, grade="inferred", budget="batch"
    ),
    "delta_random": _times(delta.RandomRange(), "key", _DELTA, grade="certain", budget="batch"),
}

"""Which architecture belongs to which family of caches. A name that is not here gets no number.

The names are the registry keys of vLLM 0.33 (``model_executor/models/registry.py``). Each family was held
against the caches that vLLM 0.33's own classes declare.
"""

from __future__ import annotations

from kvprobe.models.kv_layout import full, hybrid, mixed, mla, windows
from kvprobe.models.kv_layout.context import Context
from kvprobe.models.kv_layout.full import Family, gated, standard

_DIVIDED = Context.divided_head_dim


def _table(*rows: tuple[Family, str]) -> dict[str, Family]:
    return {name: family for family, names in rows for name in names.split()}


def _by_text(names: str) -> dict[str, None]:
    return dict.fromkeys(names.split())


FAMILIES: dict[str, Family] = _table(
    (
        standard(),
        """LlamaForCausalLM LLaMAForCausalLM LlamaModel InternLM3ForCausalLM IQuestCoderForCausalLM
        TeleChat3ForCausalLM MistralForCausalLM MistralModel MinistralForCausalLM Ministral3ForCausalLM
        Phi3ForCausalLM ApertusForCausalLM ArceeForCausalLM SeedOssForCausalLM GraniteForCausalLM
        GraniteMoeForCausalLM GraniteMoeSharedForCausalLM HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM
        Ernie4_5ForCausalLM GlmForCausalLM TeleFLMForCausalLM OlmoForCausalLM Olmo2ForCausalLM
        FlexOlmoForCausalLM Jais2ForCausalLM NanbeigeForCausalLM Starcoder2ForCausalLM""",
    ),
    (
        standard(mixes=False),
        """MixtralForCausalLM NemotronForCausalLM ExaoneForCausalLM HyperCLOVAXForCausalLM Ernie4_5_MoeForCausalLM
        Glm4ForCausalLM Glm4MoeForCausalLM MiniMaxM2ForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
        HYV3ForCausalLM SolarForCausalLM DeepseekForCausalLM PhiMoEForCausalLM Param2MoEForCausalLM
        SarvamMoEForCausalLM PanguEmbeddedForCausalLM""",
    ),
    (
        standard(mixes=False, head_size=_DIVIDED),
        """InternLM2ForCausalLM InternLM2ForRewardModel CohereForCausalLM OrionForCausalLM StableLmForCausalLM
        OlmoeForCausalLM MiniCPMForCausalLM Step1ForCausalLM""",
    ),
    (
        standard(windows.none_slide, reads_layer_types=False, kv_heads=Context.heads, head_size=_DIVIDED),
        "GPT2LMHeadModel GPT2ForSequenceClassification GPTJForCausalLM GPTNeoXForCausalLM OPTForCausalLM",
    ),
    (
        standard(windows.none_slide, kv_heads=Context.heads, head_size=full.minicpm3_head_size),
        "MiniCPM3ForCausalLM",
    ),
    (standard(windows.none_slide, head_size=_DIVIDED), "PhiForCausalLM"),
    (
        standard(windows.none_slide, kv_heads=full.bigcode_kv_heads, head_size=_DIVIDED),
        "GPTBigCodeForCausalLM",
    ),
    (
        standard(windows.none_slide, kv_heads=full.chatglm_kv_heads, head_size=_DIVIDED),
        "ChatGLMModel ChatGLMForConditionalGeneration",
    ),
    (standard(windows.none_slide, kv_heads=full.dbrx_kv_heads, head_size=_DIVIDED), "DbrxForCausalLM"),
    (full.falcon, "FalconForCausalLM"),
    (full.bloom, "BloomForCausalLM"),
    (standard(windows.none_slide), "GemmaForCausalLM"),
    (standard(windows.every(2)), "Gemma2ForCausalLM Gemma2Model VaultGemmaForCausalLM"),
    (standard(windows.every(6, "sliding_window_pattern")), "Gemma3ForCausalLM Gemma3TextModel"),
    (standard(windows.every(4, "sliding_window_pattern"), head_size=_DIVIDED, extra=1), "Cohere2ForCausalLM"),
    (standard(windows.exaone), "Exaone4ForCausalLM ExaoneMoeForCausalLM ExaoneMoEForCausalLM"),
    (standard(windows.every(4)), "Olmo3ForCausalLM"),
    (standard(windows.every(2), reads_layer_types=False), "GptOssForCausalLM"),
    (standard(windows.every(4, "global_attn_every_n_layers")), "AfmoeForCausalLM"),
    (
        standard(windows.every(4, full_first=True)),
        "CwmForCausalLM GraniteSWAForCausalLM GraniteMoeSWAForCausalLM",
    ),
    (standard(windows.every(5)), "Kolibri1ForCausalLM"),
    (standard(windows.none_slide), "MellumForCausalLM LagunaForCausalLM"),
    (standard(windows.smollm3), "SmolLM3ForCausalLM"),
    (
        gated(windows.qwen_gate, strict=True),
        "Qwen2ForCausalLM Qwen2Model Qwen2ForRewardModel Qwen2ForProcessRewardModel Qwen3ForCausalLM MiMoForCausalLM",
    ),
    (gated(windows.qwen_moe_gate, strict=False), "Qwen2MoeForCausalLM Qwen3MoeForCausalLM"),
    (standard(windows.none_slide), "Qwen3VLText Qwen3VLMoeText"),
    (mixed.llama4, "Llama4ForCausalLM"),
    (mixed.gemma3n, "Gemma3nForCausalLM"),
    (mixed.gemma4, "Gemma4ForCausalLM"),
    (mixed.mimo_v2, "MiMoV2FlashForCausalLM MiMoV2ForCausalLM"),
    (mixed.step3p5, "Step3p5ForCausalLM"),
    (standard(windows.none_slide, kv_heads=full.one_kv_head), "Step3TextForCausalLM"),
    (mixed.nemotron_nas, "DeciLMForCausalLM"),
    (mixed.minimax_m3, "MiniMaxM3SparseForCausalLM"),
    (mixed.whisper, "WhisperForConditionalGeneration"),
    (
        mla.mla,
        """DeepseekV2ForCausalLM DeepseekV3ForCausalLM DeepseekV32ForCausalLM GlmMoeDsaForCausalLM
        Glm4MoeLiteForCausalLM AXK1ForCausalLM MistralLarge3ForCausalLM PanguUltraMoEForCausalLM""",
    ),
    (mla.longcat, "LongcatFlashForCausalLM"),
    (hybrid.mamba_only, "MambaForCausalLM FalconMambaForCausalLM"),
    (hybrid.mamba2_only, "Mamba2ForCausalLM"),
    (hybrid.jamba, "JambaForCausalLM JambaForSequenceClassification"),
    (hybrid.zamba2, "Zamba2ForCausalLM"),
    (hybrid.falcon_h1, "FalconH1ForCausalLM"),
    (hybrid.granite_hybrid, "GraniteMoeHybridForCausalLM"),
    (hybrid.nemotron_h, "NemotronHForCausalLM"),
    (hybrid.qwen_delta, "Qwen3NextForCausalLM Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM"),
    (hybrid.olmo_hybrid, "OlmoHybridForCausalLM"),
    (hybrid.kimi_linear, "KimiLinearForCausalLM"),
    (hybrid.lfm2, "Lfm2ForCausalLM Lfm2MoeForCausalLM"),
    (
        full.encoder_only,
        """BertModel BertForMaskedLM BertSpladeSparseEmbeddingModel BgeM3EmbeddingModel GteModel GteNewModel
        ModernBertModel NomicBertModel RobertaForMaskedLM RobertaModel XLMRobertaModel CLIPModel SiglipModel
        BertForTokenClassification ModernBertForTokenClassification RobertaForTokenClassification
        XLMRobertaForTokenClassification BertForSequenceClassification GteNewForSequenceClassification
        ModernBertForSequenceClassification RobertaForSequenceClassification
        XLMRobertaForSequenceClassification HF_ColBERT ColBERTModernBertModel ColBERTJinaRobertaModel
        LlamaBidirectionalModel VoyageQwen3BidirectionalEmbedModel""",
    ),
)

WRAPPERS: dict[str, str | None] = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2AudioForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5OmniModel": "Qwen2ForCausalLM",
    "Qwen2_5OmniForConditionalGeneration": "Qwen2ForCausalLM",
    "AudioFlamingo3ForConditionalGeneration": "Qwen2ForCausalLM",
    "MiDashengLMModel": "Qwen2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3VLText",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3VLMoeText",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3VLMoeText",
    "Qwen3ASRForConditionalGeneration": "Qwen3ForCausalLM",
    "LlavaOnevision2ForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "Gemma3nForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV2ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV2ForCausalLM",
    "Glm4vForConditionalGeneration": "Glm4ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "GlmAsrForConditionalGeneration": "LlamaForCausalLM",
    "Phi3VForCausalLM": "LlamaForCausalLM",
    "Idefics3ForConditionalGeneration": "LlamaForCausalLM",
    "SmolVLMForConditionalGeneration": "LlamaForCausalLM",
    "AriaForConditionalGeneration": "LlamaForCausalLM",
    "Phi4MMForCausalLM": "Phi3ForCausalLM",
    "KananaVForConditionalGeneration": "LlamaForCausalLM",
    "Exaone4_5_ForConditionalGeneration": "Exaone4ForCausalLM",
    "Ernie4_5_VLMoeForConditionalGeneration": "Ernie4_5_MoeForCausalLM",
    "PaddleOCRVLForConditionalGeneration": "Ernie4_5ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3SparseForCausalLM",
    "Step3VLForConditionalGeneration": "Step3TextForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    **_by_text(
        """Mistral3ForConditionalGeneration LlavaForConditionalGeneration LlavaNextForConditionalGeneration
        LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration InternVLChatModel H2OVLChatModel
        NVLM_D SkyworkR1VChatModel InternS1ForConditionalGeneration InternVLForConditionalGeneration
        PaliGemmaForConditionalGeneration
        PixtralForConditionalGeneration VoxtralForConditionalGeneration Cohere2VisionForConditionalGeneration
        Lfm2VlForConditionalGeneration GraniteSpeechForConditionalGeneration DeepseekVLV2ForCausalLM
        DeepseekOCRForCausalLM LightOnOCRForConditionalGeneration Eagle2_5_VLForConditionalGeneration
        Llama_Nemotron_Nano_VL Blip2ForConditionalGeneration
        NemotronH_Nano_VL_V2 Ovis Ovis2_5"""
    ),
}
"""Multimodal class -> the class of its language model; None: the text config names it."""

TEXT_TYPES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM",
    "mixtral": "MixtralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "phi3": "Phi3ForCausalLM",
    "cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "internlm2": "InternLM2ForCausalLM",
    "lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM", "granite": "GraniteForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "opt": "OPTForCausalLM", "nemotron_h": "NemotronHForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "aria_text": "LlamaForCausalLM", "glm4": "Glm4ForCausalLM", "ernie4_5": "Ernie4_5ForCausalLM",
}  # fmt: skip
"""Text config's model type -> its class, where a multimodal config names no architecture for its text part."""

BACKEND_TYPES = {
    "PhiForCausalLM": "phi", "GPTBigCodeForCausalLM": "gpt_bigcode", "GPTNeoXForCausalLM": "gpt_neox",
    "OlmoForCausalLM": "olmo", "Olmo2ForCausalLM": "olmo2", "Olmo3ForCausalLM": "olmo3", "SeedOssForCausalLM": "seed_oss",
    "SmolLM3ForCausalLM": "smollm3", "Starcoder2ForCausalLM": "starcoder2", "VaultGemmaForCausalLM": "vaultgemma",
    "HunYuanDenseV1ForCausalLM": "hunyuan_v1_dense", "HunYuanMoEV1ForCausalLM": "hunyuan_v1_moe",
    "GlmForCausalLM": "glm", "ArceeForCausalLM": "arcee", "CwmForCausalLM": "cwm", "FlexOlmoForCausalLM": "flex_olmo",
    "Jais2ForCausalLM": "jais2", "Kolibri1ForCausalLM": "kolibri1", "MellumForCausalLM": "mellum",
    "NanbeigeForCausalLM": "nanbeige",
}  # fmt: skip
"""Classes that vLLM 0.33 runs through transformers' own model -> the model type that transformers must know."""

REMOVED = {
    "0.10": """MotifForCausalLM Phi4FlashForCausalLM MllamaForConditionalGeneration DonutForConditionalGeneration""",
    "0.9": "Phi3SmallForCausalLM",
    "0.12": "Phi4MultimodalForCausalLM",
    "0.22": "JAISLMHeadModel",
    "0.23": """QWenLMHeadModel QwenVLForConditionalGeneration InternLMForCausalLM XverseForCausalLM Dots1ForCausalLM
        BambaForCausalLM MiniMaxForCausalLM MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM BaiChuanForCausalLM
        BaichuanForCausalLM MiniMaxVL01ForConditionalGeneration InternLM2VEForCausalLM ErnieModel
        Tarsier2ForConditionalGeneration""",
    "0.24": """AquilaModel AquilaForCausalLM Grok1ModelForCausalLM Grok1ForCausalLM AyaVisionForConditionalGeneration
        TarsierForConditionalGeneration MantisForConditionalGeneration MusicFlamingoForConditionalGeneration""",
    "0.25": "TeleChatForCausalLM PersimmonForCausalLM FuyuForCausalLM",
    "0.26": "Plamo2ForCausalLM OuroForCausalLM",
    "0.28": """ArcticForCausalLM ChameleonForConditionalGeneration MPTForCausalLM MptForCausalLM RWForCausalLM
        StableLMEpochForCausalLM Fairseq2LlamaForCausalLM GritLM HCXVisionForCausalLM
        FireRedLIDForConditionalGeneration Cheers CheersForConditionalGeneration""",
}
"""vLLM version in which support ended -> architectures (``_PREVIOUSLY_SUPPORTED_MODELS``)."""

PLUGINS = (
    "BartModel",
    "BartForConditionalGeneration",
    "MBartForConditionalGeneration",
    "Florence2ForConditionalGeneration",
)
"""Served by an out-of-tree plugin only."""

WITHOUT_RULE = {
    "DeepseekV4ForCausalLM": "windowed and compressed MLA rows packed into padded pages",
    "DeepseekV4ForConditionalGeneration": "windowed and compressed MLA rows packed into padded pages",
    "DeepseekV41ForCausalLM": "windowed and compressed MLA rows packed into padded pages",
    "BailingMoeV2_5ForCausalLM": "linear-attention states beside MLA",
    "BailingMoeV3ForCausalLM": "linear-attention states beside MLA",
    "Qwen4ExpForCausalLM": "several recurrent state layouts with an n-gram cache",
    "Qwen4ExpForConditionalGeneration": "several recurrent state layouts with an n-gram cache",
    "Glm5NextForCausalLM": "KDA states beside indexed MLA",
    "Glm5NextForConditionalGeneration": "KDA states beside indexed MLA",
    "HYV4ForCausalLM": "windowed MLA with an indexer",
    "InklingForCausalLM": "short convolutions beside windowed attention",
    "InklingForConditionalGeneration": "short convolutions beside windowed attention",
    "KimiK3ForConditionalGeneration": "KDA and MLA with attention residuals",
    "Step5ForCausalLM": "summary caches of compressed sparse attention",
    "Step5ForConditionalGeneration": "summary caches of compressed sparse attention",
    "Dots3NoteForCausalLM": "windowed MLA",
    "BeamForCausalLM": "shared caches with windows",
    "FlintForCausalLM": "shared caches with windows",
}
"""Served by vLLM 0.33, not computed here -> the first missing rule."""

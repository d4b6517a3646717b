"""The index of faults: each case that nmtkit must survive, and the tests that hold it.

The numbers are those of the project's list of faults; what stands under NUMBERS must be right although nothing crashes.
"""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = "faults/test_cases.py"
SAVED, TRAINED = "faults/test_checkpoints.py", "faults/test_training.py"

CASES = {
    1: ("kill -9 while a checkpoint is written", {
        HERE: ["test_01_killed_while_a_checkpoint_is_written"],
        SAVED: ["test_killed_while_saving_leaves_the_previous_checkpoint", "test_killed_while_replacing_brings_the_old_one_back"],
        "train/test_resume.py": ["test_killed_at_random_times"],
    }),
    2: ("disk full while saving", {
        SAVED: ["test_disk_full_once_is_a_warning", "test_disk_full_twice_stops_with_the_last_state_intact", "test_a_write_that_the_kernel_refuses"],
        HERE: ["test_02_a_full_disk_under_the_metrics_stops_with_what_is_saved", "test_02_a_log_that_cannot_be_written_ends_nothing"],
    }),
    3: ("truncated or bit-flipped checkpoint", {
        SAVED: [
            "test_damage_is_named",
            "test_training_goes_on_from_the_newest_whole_checkpoint",
            "test_all_damaged_is_an_error",
            "test_a_damaged_checkpoint_is_left_out_of_the_mean",
        ],
    }),
    4: ("SIGTERM, SIGUSR1, Ctrl-C", {
        HERE: ["test_04_a_signal_saves_and_ends_with_the_code_for_resumable"],
        "train/test_resume.py": ["test_stopped_and_continued_is_as_if_never_stopped", "test_a_second_ctrl_c_ends_at_once"],
    }),
    5: ("resume with changed settings", {
        TRAINED: ["test_changed_settings_are_refused_with_a_table", "test_harmless_changes_are_said_and_taken"],
        HERE: ["test_05_a_change_that_is_allowed_is_said_and_taken"],
    }),
    6: ("resume after the data changed", {TRAINED: ["test_a_corpus_prepared_anew_is_refused", "test_a_changed_file_is_named"]}),
    7: ("resume on another number of processes", {"train/test_ranks.py": ["test_continued_by_other_numbers_of_processes"]}),
    8: ("train called on a finished system", {TRAINED: ["test_a_finished_training_says_so"]}),
    9: ("two processes on one run", {
        TRAINED: ["test_a_held_system_is_refused"],
        "test_run.py": ["test_a_second_writer_is_told_who_holds_the_run_and_a_dead_one_does_not_count"],
    }),
    10: ("loss or gradient not finite", {
        TRAINED: [
            "test_an_update_that_is_not_finite_is_skipped_and_counted",
            "test_five_in_a_row_stop_with_everything_needed",
            "test_one_in_a_hundred_stops",
            "test_the_first_module_that_is_not_finite_is_named",
        ],
        "test_cli.py": ["test_a_training_that_loses_its_numbers_ends_with_exit_code_4"],
    }),
    11: ("a row with no visible key", {
        "nn/test_attention.py": ["test_blind_queries_get_exactly_zero_and_finite_gradients"],
        "models/test_contract.py": ["test_10_rows_without_a_source_stay_finite"],
    }),
    12: ("out of memory on a batch", {
        TRAINED: ["test_out_of_memory_computes_the_same_update_in_parts", "test_too_little_memory_for_one_pair_is_said"],
        "train/test_resume.py": ["test_a_continued_training_splits_the_same_batches"],
    }),
    13: ("one sentence longer than the token budget", {
        TRAINED: ["test_a_pair_above_the_budget_is_trained_on"],
        "prep/test_pipeline.py": ["test_equals_the_slow_way"],
        "translate/test_translator.py": ["test_over_long_lines_are_translated_in_pieces_and_counted", "test_a_very_long_line_comes_back"],
        "translate/test_pieces.py": ["test_nothing_is_lost_and_no_piece_is_too_long"],
    }),
    14: ("ranks with unequal numbers of batches", {"train/test_ranks.py": ["test_every_pair_is_computed_once_whatever_the_number_of_ranks"]}),
    15: ("one rank dies", {
        "train/test_ranks.py": [
            "test_a_killed_rank_ends_the_others_and_is_named",
            "test_a_rank_that_stands_still_ends_the_others_within_the_timeout",
        ],
    }),
    16: ("memory grows", {
        HERE: ["test_16_memory_does_not_grow_over_epochs"],
        "data/test_store.py": ["test_a_store_travels_by_path", "test_writing_takes_constant_memory"],
        "prep/test_pipeline.py": ["test_memory_does_not_grow_with_the_corpus"],
    }),
    17: ("bytes that are not UTF-8", {
        HERE: ["test_17_the_text_around_a_bad_byte_is_shown"],
        "prep/test_stage.py": ["test_bad_utf8_has_line_and_byte_offset"],
        "prep/test_pipeline.py": ["test_bad_utf8_can_be_replaced_or_dropped"],
        "translate/test_stage.py": ["test_bytes_that_are_not_utf8_stop_before_any_output"],
    }),
    18: ("BOM, CRLF, U+2028, U+0085, NUL, form feed, tabs", {
        "prep/test_clean.py": ["test_each_kind_is_made_safe_and_counted"],
        "prep/test_pipeline.py": ["test_nasty_text_is_handled_and_counted", "test_dev_and_test_go_the_way_of_translation_and_keep_every_line"],
        "translate/test_translator.py": ["test_windows_of_a_file_keep_odd_characters"],
    }),
    19: ("source and target of different length", {"prep/test_stage.py": ["test_counts_that_differ_name_the_first_suspicious_line"]}),
    20: ("empty lines in the training text", {"prep/test_pipeline.py": ["test_every_drop_is_counted_by_reason_and_side"]}),
    21: ("blank lines in translation", {
        "prep/test_stage.py": [
            "test_a_set_without_a_line_with_text_is_refused_and_nothing_is_written",
            "test_blank_lines_of_dev_and_test_sets_are_counted_and_warned_of",
        ],
        "translate/test_translator.py": ["test_blank_lines_stay_blank_and_never_meet_the_model"],
        "test_cli.py": ["test_stdout_carries_the_result_only"],
    }),
    22: ("hypotheses and references differ in number", {
        "score/test_metrics.py": ["test_line_counts_are_checked_before_sacrebleu_cuts"],
        "test_cli.py": ["test_line_counts_are_checked_before_scoring"],
    }),
    23: ("empty hypotheses or references in scoring", {
        "score/test_metrics.py": ["test_empty_lines_are_scored_and_counted"],
        "score/test_stage.py": ["test_empty_hypotheses_are_counted_and_shown"],
    }),
    24: ("empty or tiny corpus, more merges than possible", {
        HERE: [
            "test_24_too_little_to_prepare_is_said_before_anything_is_written",
            "test_24_a_corpus_of_one_pair_has_the_merges_it_has_and_can_be_trained_on",
        ],
        "prep/test_subwords.py": ["test_fewer_merges_than_asked_and_none_at_all"],
        "prep/test_pipeline.py": ["test_everything_dropped_is_an_error_that_says_why", "test_a_vocabulary_with_nothing_in_it_is_an_error"],
    }),
    25: ("text that spells @@, <pad>, </s> or &apos;", {
        "prep/test_text.py": ["test_control_symbols_in_the_text_are_text"],
        "prep/test_subwords.py": ["test_words_ending_in_the_joiner_are_not_read_as_joined"],
        "prep/test_moses.py": ["test_escapes_in_the_text_are_text"],
        "data/test_vocabulary.py": ["test_text_that_spells_a_special_symbol_is_unknown"],
        "properties/test_text.py": ["test_ids_bring_tokens_back_and_no_token_is_a_control_symbol"],
    }),
    26: ("vocabulary or BPE codes not those of the checkpoint", {
        HERE: [
            "test_26_text_cut_or_cased_otherwise_than_in_training_is_refused",
            "test_26_checkpoints_from_before_codes_were_recorded_still_load",
        ],
        SAVED: ["test_another_vocabulary_is_refused"],
    }),
    27: ("download interrupted, no Range, wrong checksum, captive page", {
        "prep/test_download.py": [
            "test_a_dying_server_is_asked_for_the_rest",
            "test_without_range_it_starts_again_and_says_so",
            "test_a_wrong_file_is_set_aside_with_both_checksums_and_the_mirror_tried",
            "test_a_web_page_is_named_and_costs_nothing_that_was_there",
            "test_nothing_good_means_exit_3_and_no_file",
        ],
    }),
    28: ("an archive with ../ members or links", {
        "prep/test_archives.py": ["test_names_that_leave_the_folder", "test_links_and_devices", "test_a_link_in_a_zip"],
    }),
    29: ("run folder read-only, gone, or away for a while", {
        HERE: ["test_29_a_disk_that_is_away_for_a_while_is_waited_for", "test_29_a_folder_that_has_gone_ends_the_training_after_a_minute"],
        TRAINED: ["test_a_system_folder_that_is_a_file_is_an_environment_problem"],
        "prep/test_stage.py": ["test_a_folder_that_cannot_be_written"],
    }),
    30: ("an old or foreign checkpoint, a pickle", {SAVED: ["test_a_pickle_is_never_loaded", "test_another_format_is_refused"]}),
    31: ("a beam that never ends", {
        "translate/test_beam.py": ["test_length_limit_is_kept_and_said"],
        "translate/test_translator.py": ["test_nbest_and_unfinished_are_reported"],
    }),
    32: ("decoding the development set is slow or fails", {
        HERE: ["test_32_decoding_the_development_set_is_bounded_and_its_time_is_shown"],
        TRAINED: ["test_failing_decoding_is_a_warning_and_the_loss_decides"],
    }),
    33: ("no GPU, fewer GPUs", {
        HERE: ["test_33_a_gpu_is_named_by_a_number_that_there_is"],
        TRAINED: ["test_a_gpu_that_is_not_there", "test_the_choice_is_said_in_one_line"],
        "translate/test_stage.py": ["test_absent_gpu"],
    }),
    34: ("an optional package is missing", {
        HERE: ["test_34_training_needs_no_tensorboard"],
        "score/test_tables.py": ["test_without_matplotlib_one_line_says_how_to_get_it"],
    }),
    35: ("broken pipe, stdin closed", {
        HERE: ["test_35_a_reader_that_has_gone_is_no_error"],
        "translate/test_stage.py": ["test_a_closed_pipe_ends_quietly", "test_stdin_closed_by_the_shell"],
    }),
    36: ("clock jumps, log restarts", {
        HERE: ["test_36_a_clock_that_is_set_back_changes_nothing_that_counts"],
        TRAINED: ["test_metrics_beyond_the_checkpoint_are_cut"],
    }),
}  # fmt: skip

NUMBERS = {
    "the loss is a sum, divided once by the target tokens of the whole update": {
        "train/test_loss.py": ["test_loss_and_gradients_equal_the_formula"],
        "train/test_stage.py": ["test_accumulated_micro_batches_equal_one_batch"],
        "train/test_ranks.py": ["test_the_same_weights_as_one_process"],
    },
    "padding changes nothing": {
        "models/test_contract.py": ["test_02_neither_neighbours_nor_padding_matter"],
        "train/test_loss.py": ["test_padding_has_no_loss_and_no_gradient"],
    },
    "averaged checkpoints: floating tensors in float64, tied weights once": {
        SAVED: ["test_averaging_in_float64", "test_tied_weights_are_stored_once_and_stay_tied"],
    },
    "early stopping compares like with like": {
        HERE: ["test_41_the_best_is_sought_anew_when_another_development_set_is_measured", "test_41_what_was_measured_is_part_of_the_best"],
    },
    "forced scores include </s> and have no length penalty": {"translate/test_forced.py": ["test_forced_scores_are_the_slow_ones"]},
    "significance: the same sentences, seeds said, spread across training seeds": {
        "score/test_significance.py": ["test_what_cannot_be_compared_is_refused"],
        "score/test_seeds.py": ["test_seeds_are_one_row_and_significance_is_said_honestly"],
    },
}  # fmt: skip

ANALYSES = {"divergence": "base of the logarithm, with and without </s>", "agreement": "sums with </s>, no length norm, ties are wrong"}
"""Analyses whose numbers are on the list, and what of them; each must have tests from the day it is there."""


@functools.cache
def functions_of(path):
    """The tests that pytest collects from a file: functions at the top by name, none of them always skipped."""
    found = set()
    for node in ast.parse((ROOT / "tests" / path).read_text("utf-8")).body:
        marks = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in getattr(node, "decorator_list", [])}
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not marks & {"pytest.mark.skip", "pytest.mark.xfail"}:
            found.add(node.name)
    return found


def named():
    return [(path, test) for tests in [*(tests for _, tests in CASES.values()), *NUMBERS.values()] for path, names in tests.items() for test in names]


def test_every_case_has_a_test():
    assert list(CASES) == list(range(1, 37))
    assert all(tests and all(tests.values()) for _, tests in CASES.values())
    assert all(tests and all(tests.values()) for tests in NUMBERS.values())


@pytest.mark.parametrize("path", sorted({path for path, _ in named()}))
def test_every_test_that_is_named_is_there(path, request):
    wanted = {test for file, test in named() if file == path}
    assert wanted <= functions_of(path)
    assert Path(path).name.startswith("test_")
    collected = {item.nodeid.partition("[")[0] for item in request.session.items}
    options = request.config.option
    chosen_by_name = options.keyword or getattr(options, "lf", False) or any("::" in argument for argument in request.config.args)
    if not chosen_by_name and any(node.startswith(f"tests/{path}::") for node in collected):
        assert {f"tests/{path}::{test}" for test in wanted} <= collected


def test_every_test_of_the_cases_is_named():
    assert functions_of(HERE) == {test for path, test in named() if path == HERE}


def test_an_analysis_on_the_list_has_tests_of_its_own():
    from nmtkit.analyze import ANALYSES as THERE

    assert all(functions_of(f"analyze/test_{name}.py") for name in ANALYSES if name in THERE)

"""Unexpected behaviour of the agents, each with the tests that cover it.

A trap whose test is missing fails here, with its name. Paths are from this folder; a name may
leave out its ``test_``, or be a row of the file's table.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent

REAL_SESSIONS, REAL_ERRORS = "real_agents/test_real_sessions.py", "real_agents/test_real_errors.py"
REAL_POLICY, REAL_ATTACKS = "real_agents/test_real_policy.py", "real_agents/test_real_attacks.py"
SERVICE_ERRORS = "real_agents/test_real_errors_and_tools.py"
REAL_REPOSITORY = "real_agents/test_real_hostile_repository.py"
REAL_PROMPTS, REAL_TOOLS = "real_agents/test_real_prompts.py", "real_agents/test_real_tools.py"
CLAUDE = "agents/claude/test_claude.py"
CODEX = "agents/codex/test_codex.py"
OPENCODE = "agents/opencode/test_opencode.py"
OPENCODE_CLI = "agents/opencode/test_opencode_cli.py"
RECORDED = "agents/test_stream_recordings.py"
COPILOT = "agents/copilot/test_copilot.py"
QWEN = "agents/test_qwen.py"
REAL_CLAUDE = "real_agents/test_claude_specifics.py"
REAL_CODEX = "real_agents/test_codex_specifics.py"
CONTROL, ACP, ACP_SAID = (
    "protocol/stream_json/test_stream_json.py",
    "protocol/acp/test_acp_client.py",
    "protocol/acp/test_acp_recordings.py",
)
SESSION, ACP_SESSION = "sessions/test_session.py", "sessions/acp/test_acp_session.py"

TRAPS: dict[str, tuple[tuple[str, str], ...]] = {
    # Claude Code
    "says success of a failed API": (
        (CONTROL, "a_success_with_an_error_is_an_error"),
        (REAL_ERRORS, "an_api_error_has_its_own_class"),
    ),
    "an API error comes as an answer of a made-up model": (
        (RECORDED, "claude-cli e429 text delta"),
    ),
    "a result comes early while sub-agents work in the background": (
        (CONTROL, "a_result_is_early_while_sub_agents_run_and_usage_includes_them"),
        (REAL_CLAUDE, "a_sub_agent_has_no_more_rights_than_the_main_agent"),
    ),
    "init comes again": ((CONTROL, "a_second_init_is_the_same_session"),),
    "it puts words into the user's mouth": (
        (CONTROL, "text_in_the_name_of_the_user_is_not_part_of_the_answer"),
    ),
    "a block comes in pieces and then whole": ((RECORDED, "claude-cli partial text delta"),),
    "cost and model usage are of the whole session": (
        (RECORDED, "claude-cli resume-fork done cost.usd"),
        (REAL_SESSIONS, "a_fork_continues_from_a_session_that_stays_unchanged"),
    ),
    "usage leaves the cache out": ((RECORDED, "claude-cli plain done usage"),),
    "stdin must be closed after the last word": (
        (REAL_PROMPTS, "the_events_of_a_run_report_its_tools_files_and_model"),
    ),
    "root may not bypass permissions": (
        (CLAUDE, "permissions_are_never_skipped"),
        (REAL_POLICY, "the_policy_all_allows_everything_without_a_question"),
    ),
    "acceptEdits runs shell commands that touch files": (
        ("real_agents/test_real_providers.py", "the_permission_modes_of_the_agent_are_honored"),
    ),
    "commands that only read are never asked about": (
        (REAL_POLICY, "without_permission_nothing_is_written_run_or_called"),
    ),
    "a bare Write may write anywhere": (
        (REAL_ATTACKS, "edits_change_plain_files_of_the_workspace_and_nothing_else"),
    ),
    "a hidden tool is not listed among the denials": (
        (REAL_POLICY, "what_is_denied_is_not_offered_and_not_done"),
    ),
    "the maker is asked about an address before it is fetched": (
        (CLAUDE, "its_temporary_files_stay_in_the_session_and_no_service_is_asked_about_a_url"),
    ),
    "a schema that is not met is a success": (
        (RECORDED, "claude-cli badjson error code"),
        ("real_agents/test_real_output.py", "an_answer_that_never_fits_is_an_error"),
    ),
    "a resumed session keeps its first system prompt": (
        (REAL_CLAUDE, "a_resumed_session_has_the_system_prompt_of_the_new_run"),
    ),
    "a refused key is tried ten times": ((CLAUDE, "options_become_flags"),),
    "a slash, an @ or a dash at the start of a prompt": (
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
    ),
    "a prompt over 10 MB": (
        (REAL_CLAUDE, "files_that_it_does_not_accept_are_refused_before_it_starts"),
    ),
    "a dead tool server is only a status": ((RECORDED, "claude-cli mcp-dead error code"),),
    "the repository's hooks, servers and base URL are obeyed": (
        (
            "testing/test_hostile.py",
            "nothing_of_a_hostile_repository_takes_effect",
        ),
        (REAL_REPOSITORY, "nothing_in_a_repository_is_obeyed"),
    ),
    # Codex
    "with an argument and an open stdin it waits for ever": (
        (CODEX, "it_uses_the_private_home_and_reads_the_prompt_from_a_closed_stdin"),
    ),
    "OPENAI_BASE_URL is ignored": (
        (CODEX, "the_environment_sets_the_base_url_and_the_options_the_retries"),
    ),
    "a connection that is refused is tried for ever": (
        (REAL_ERRORS, "a_model_that_cannot_be_reached_is_a_network_error"),
    ),
    "an error line is not the end": (
        (RECORDED, "codex-cli e401 error code recoverable"),
        (REAL_CODEX, "an_unknown_model_is_a_warning"),
    ),
    "a refused call is no event": (
        (CODEX, "a_denial_is_read_from_stderr"),
        (REAL_POLICY, "without_permission_nothing_is_written_run_or_called"),
    ),
    "MCP tools need approval, and exec mode never approves": (
        (CODEX, "allowed_servers_are_approved_and_others_are_left_out"),
        (REAL_TOOLS, "python_functions_are_tools_of_the_agent"),
    ),
    "a dead tool server is a silence": (
        (REAL_CODEX, "an_mcp_server_that_does_not_start_is_an_error"),
    ),
    "tokens are of the whole thread": (
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
        (REAL_SESSIONS, "a_fork_continues_from_a_session_that_stays_unchanged"),
    ),
    "the sandbox flag counts only before resume": (
        (CODEX, "the_resume_argument_comes_after_all_flags"),
    ),
    "the sandbox leaves /tmp open": (
        (REAL_CODEX, "a_shell_that_may_write_is_limited_to_the_workspace_and_the_network_policy"),
    ),
    "it reads the whole disk": (
        (REAL_POLICY, "what_an_agent_cannot_do_is_refused_before_it_starts"),
    ),
    "an argument has 131,071 bytes at most": (
        (CODEX, "a_setting_that_is_too_long_for_an_argument_is_refused"),
    ),
    "the bridge starts in a mode that writes in silence": (
        (
            "agents/codex/test_codex_acp.py",
            "it_never_starts_in_the_mode_that_writes_without_asking",
        ),
    ),
    "the bridge tells an API error as an answer": (
        (SERVICE_ERRORS, "errors_of_the_service_are_errors_and_the_start_names_the_tools"),
    ),
    # OpenCode
    "it believes PWD": (
        (OPENCODE, "it_uses_the_private_home_and_works_in_the_folder_of_the_run"),
        (OPENCODE_CLI, "the_prompt_is_sent_on_stdin_and_the_folder_is_named_twice"),
    ),
    "a prompt as argument is put in quotes": (
        (OPENCODE_CLI, "the_prompt_is_sent_on_stdin_and_the_folder_is_named_twice"),
    ),
    "without a model it takes its maker's": (
        (OPENCODE, "the_hosted_models_are_off_unless_they_are_requested"),
    ),
    "a library is left in TMPDIR by each run": (
        (OPENCODE, "it_uses_the_private_home_and_works_in_the_folder_of_the_run"),
    ),
    "a question ends the run": (
        (OPENCODE_CLI, "what_is_not_allowed_is_denied_because_a_permission_request_ends_the_run"),
        (REAL_POLICY, "edits_are_made_in_the_workspace_and_writable_folders_only"),
    ),
    "a session resumed in another folder hangs": (
        (REAL_SESSIONS, "a_lost_session_and_a_session_of_another_folder_cannot_be_resumed"),
    ),
    "there is no last line": ((OPENCODE_CLI, "success_needs_the_last_step_and_a_clean_exit"),),
    "tokens and cost are of a step, without cache and thoughts": (
        (RECORDED, "opencode-cli write-default done usage"),
    ),
    "a command that failed is completed": (
        (RECORDED, "opencode-cli shellfail tool_result status output"),
    ),
    "its commands are in a separate session, and outlive it": (
        (REAL_SESSIONS, "cancelling_a_prompt_ends_its_command_and_the_session_goes_on"),
        (REAL_SESSIONS, "cancelling_a_prompt_ends_its_command_and_the_session_goes_on"),
    ),
    "the repository's plugins are run": (
        (REAL_REPOSITORY, "nothing_in_a_repository_is_obeyed"),
        (OPENCODE, "a_repository_with_settings_of_its_own_is_refused_unless_it_is_trusted"),
    ),
    "an inlined key is seen by its shell": (
        (OPENCODE, "no_secret_is_written_into_the_configuration"),
    ),
    # Copilot
    "a short key is redacted in the JSON itself": (
        (COPILOT, "unsupported_options_are_refused_before_the_start"),
    ),
    "stdin is ignored beside -p": (
        (COPILOT, "the_prompt_is_sent_on_stdin_and_the_session_id_is_known_before_the_start"),
    ),
    "tokens are in a file alone": (
        (RECORDED, "tokens_are_the_sum_of_the_models_in_the_report_of_copilot"),
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
    ),
    "exit code 0 after a signal": (
        (RECORDED, "the_end_and_the_denied_calls_are_reported_correctly"),
    ),
    "a failed command is a success of its tool": (
        (
            RECORDED,
            "copilot-cli shellfail tool_result status",
        ),
    ),
    "in ACP mode it sends an API error as an answer": (
        (SERVICE_ERRORS, "errors_of_the_service_are_errors_and_the_start_names_the_tools"),
        (ACP, "an_error_sent_as_the_answer_is_an_error_if_no_tokens_were_counted"),
    ),
    "COPILOT_ALLOW_ALL runs the repository's hooks": (
        (COPILOT, "it_contacts_only_the_provider_and_loads_nothing_of_the_repository"),
        (REAL_REPOSITORY, "nothing_in_a_repository_is_obeyed"),
    ),
    "the program and its command survive the launcher": (
        (REAL_SESSIONS, "cancelling_a_prompt_ends_its_command_and_the_session_goes_on"),
    ),
    # Qwen Code
    "left to itself it writes in silence": (
        (QWEN, "the_mode_is_always_set_because_the_default_writes_without_asking"),
        (REAL_POLICY, "without_permission_nothing_is_written_run_or_called"),
    ),
    "its mode for edits fetches too, and writes anywhere on the disk": (
        (QWEN, "the_mode_is_always_set_because_the_default_writes_without_asking"),
        (REAL_POLICY, "edits_are_made_in_the_workspace_and_writable_folders_only"),
    ),
    "it asks the model on the side, and counts that too": (
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
    ),
    "an API error comes as text": (
        (RECORDED, "qwen-cli e401 text delta"),
        (SERVICE_ERRORS, "errors_of_the_service_are_errors_and_the_start_names_the_tools"),
    ),
    "words in pieces come again whole, under another id": (
        (
            RECORDED,
            "qwen-cli pieces text delta",
        ),
    ),
    "a limit ends it without a result": (
        (QWEN, "an_end_without_a_result_is_explained"),
        (REAL_PROMPTS, "a_turn_limit_ends_the_run"),
    ),
    "tokens include the cache, and are of the whole session": (
        (RECORDED, "qwen-cli pieces done usage"),
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
    ),
    "a busy service is tried for minutes": (
        (RECORDED, "qwen-cli e429 error message"),
        (QWEN, "options_become_flags_and_settings"),
    ),
    "a prompt is cut at 8 MiB": ((QWEN, "a_prompt_that_would_be_cut_is_refused"),),
    "a slash or an @ in a prompt is acted on": (
        (QWEN, "a_prompt_with_special_syntax_is_sent_as_a_command"),
        (REAL_SESSIONS, "a_conversation_continues_in_its_session_and_after_resuming"),
    ),
    "a session is known in its own folder alone": (
        (QWEN, "an_end_without_a_result_is_explained"),
        (REAL_SESSIONS, "a_lost_session_and_a_session_of_another_folder_cannot_be_resumed"),
    ),
    "its launcher dies, and the program and its command go on": (
        (REAL_SESSIONS, "cancelling_a_prompt_ends_its_command_and_the_session_goes_on"),
    ),
    "the repository's mode, hooks and servers are obeyed, and its .env": (
        (REAL_REPOSITORY, "nothing_in_a_repository_is_obeyed"),
        (QWEN, "variables_that_a_dot_env_could_set_are_already_set"),
    ),
    "a peer that is refused something ends its turn": (
        (ACP_SESSION, "a_turn_that_ends_after_a_denial_is_reported_as_such"),
        (REAL_POLICY, "the_caller_decides_and_shell_rules_need_no_question"),
    ),
    # All of them
    "lines of a kind that is unknown": (
        (CONTROL, "an_unknown_line_is_reported_unchanged"),
        (RECORDED, "a_line_of_an_unknown_kind_is_passed_on_unchanged"),
        ("protocol/test_ndjson.py", "an_unknown_frame_is_reported_unchanged"),
    ),
    "a model that is silent is waited for, or tried again in silence": (
        (SESSION, "silence_in_between_ends_by_its_own_deadline"),
        (ACP_SESSION, "silence_in_between_ends_by_its_own_deadline"),
    ),
    "protocol version 2 is another protocol": (
        (ACP, "an_agent_with_another_protocol_version_is_rejected"),
    ),
    "a loaded session tells its history as if it happened now": (
        (ACP, "history_is_dropped_until_the_prompt_also_after_the_reply"),
    ),
    "tokens are of the last step, the turn or the session": (
        (ACP_SAID, "usage_is_counted_in_the_same_way_for_every_agent"),
        (ACP, "tokens_counted_for_the_session_are_reported_for_the_turn"),
        (ACP, "cost_is_reported_for_the_turn_and_not_for_the_session"),
    ),
    "a call that was refused may never be spoken of again": (
        (ACP, "a_denied_tool_is_reported_even_if_the_agent_sends_no_update"),
    ),
    "a call comes empty and is filled later": (
        (ACP_SAID, "a_call_that_is_completed_by_updates_is_reported_once"),
    ),
    "npm's script was not run: the program is in a package of the machine's": (
        (CODEX, "the_program_is_the_one_made_for_this_machine"),
        (OPENCODE, "the_program_is_the_one_made_for_this_machine"),
    ),
}


@cache
def named_in(path: str) -> frozenset[str]:
    tree = ast.parse((HERE / path).read_text("utf-8"))
    return frozenset(
        node.name.removeprefix("test_")
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ) | {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_has_its_tests(trap: str) -> None:
    for path, name in TRAPS[trap]:
        assert name.removeprefix("test_") in named_in(path), f"{path} has no {name}"

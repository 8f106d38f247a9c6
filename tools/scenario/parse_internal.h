// SPDX-License-Identifier: MIT
//
// The parts of the scenario parser that call each other.

#pragma once

#include "tools/scenario/lexer.h"
#include "tools/scenario/scenario.h"

namespace lockstep::scenario {

// Is `name` of such a statement a communicator?
bool names_communicator(Verb verb);

// Statements up to a closing brace (which stays) or the end.
std::vector<Statement> parse_statements(Cursor& cursor);

// Whether a rank may do all this: it must be a member of the communicators it calls, and so must roots and peers.
void check_statements(Cursor& cursor, const Scenario& scenario, int rank, const std::vector<Statement>& body);

// Every word that begins a statement or a setting, for the test that docs/scenarios.md explains all of them.
std::vector<std::string> statement_words();
const std::vector<std::string>& setting_words();

}  // namespace lockstep::scenario

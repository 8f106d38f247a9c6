// SPDX-License-Identifier: MIT
//
// The few preprocessor tools that turn a row of nccl_functions.def into a declaration, a call or a table entry.
// A row ends in a list of (type, name, role) triples; LOCKSTEP_LIST(F, triples...) gives F(triple), F(triple), ...
// and LOCKSTEP_EACH(F, triples...) gives F(triple) F(triple) ... for up to 16 triples.
// __VA_OPT__ works in C and C++ with GCC and Clang alike, so clients written in C can include our <nccl.h> too.

#pragma once

#define LOCKSTEP_EXPAND(...) LOCKSTEP_EXPAND2(LOCKSTEP_EXPAND2(LOCKSTEP_EXPAND2(__VA_ARGS__)))
#define LOCKSTEP_EXPAND2(...) LOCKSTEP_EXPAND1(LOCKSTEP_EXPAND1(LOCKSTEP_EXPAND1(__VA_ARGS__)))
#define LOCKSTEP_EXPAND1(...) __VA_ARGS__
#define LOCKSTEP_PARENS ()

#define LOCKSTEP_EACH(F, ...) __VA_OPT__(LOCKSTEP_EXPAND(LOCKSTEP_EACH_STEP(F, __VA_ARGS__)))
#define LOCKSTEP_EACH_STEP(F, x, ...) F(x) __VA_OPT__(LOCKSTEP_EACH_AGAIN LOCKSTEP_PARENS(F, __VA_ARGS__))
#define LOCKSTEP_EACH_AGAIN() LOCKSTEP_EACH_STEP

#define LOCKSTEP_LIST(F, ...) __VA_OPT__(LOCKSTEP_EXPAND(LOCKSTEP_LIST_STEP(F, __VA_ARGS__)))
#define LOCKSTEP_LIST_STEP(F, x, ...) F(x) __VA_OPT__(, LOCKSTEP_LIST_AGAIN LOCKSTEP_PARENS(F, __VA_ARGS__))
#define LOCKSTEP_LIST_AGAIN() LOCKSTEP_LIST_STEP

// The parts of one (type, name, role) triple.
#define LOCKSTEP_ARG_DECL(triple) LOCKSTEP_ARG_DECL_ triple
#define LOCKSTEP_ARG_DECL_(type, name, role) type name
#define LOCKSTEP_ARG_NAME(triple) LOCKSTEP_ARG_NAME_ triple
#define LOCKSTEP_ARG_NAME_(type, name, role) name
#define LOCKSTEP_ARG_TYPE(triple) LOCKSTEP_ARG_TYPE_ triple
#define LOCKSTEP_ARG_TYPE_(type, name, role) type
#define LOCKSTEP_ARG_ROLE(triple) LOCKSTEP_ARG_ROLE_ triple
#define LOCKSTEP_ARG_ROLE_(type, name, role) role

// (type name, type name, ...) of a row, "void" free so that it reads the same in C++.
#define LOCKSTEP_PARAMS(...) (LOCKSTEP_LIST(LOCKSTEP_ARG_DECL __VA_OPT__(, ) __VA_ARGS__))
#define LOCKSTEP_ARGS(...) (LOCKSTEP_LIST(LOCKSTEP_ARG_NAME __VA_OPT__(, ) __VA_ARGS__))

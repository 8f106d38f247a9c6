# SPDX-License-Identifier: MIT
#
# One relocatable archive, lockstep-<version>-<arch>.tar.gz, with the layout of the build tree: unpack it anywhere and
# run bin/lockstep. Every program and library finds its neighbours by $ORIGIN or by /proc/self/exe, never by the prefix.
# Debug information stays in: a verdict of the demo is worth its file and line.

set(lockstep_docs ${CMAKE_INSTALL_DATADIR}/doc/lockstep)
install(FILES README.md LICENSE DESTINATION ${lockstep_docs})
install(DIRECTORY docs/ DESTINATION ${lockstep_docs}/docs)

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VENDOR "Lockstep contributors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Names the rank that hangs an NCCL job")
set(CPACK_PACKAGE_FILE_NAME lockstep-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_RESOURCE_FILE_README ${PROJECT_SOURCE_DIR}/README.md)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
set(CPACK_VERBATIM_VARIABLES ON)
include(CPack)

# Writes OUTPUT, a source with the commit of SOURCE, if it does not say that already.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --exclude=* --abbrev=9
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
set(text "// Made by build_commit.cmake.
#include \"deploy/app/info/info.h\"
std::string_view tributary::build_commit() noexcept {
  return \"${commit}\";
}
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()

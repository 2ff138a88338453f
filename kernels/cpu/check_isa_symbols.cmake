# Fails when an object compiled for one instruction set defines a symbol outside its own namespace
# that the linker may merge with another object's (weak, unique or global): the copy it keeps could
# hold instructions that the machine lacks. Arguments: NM, OBJECTS.
set(checked 0)
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} --defined-only --extern-only -C ${object}
    OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} ${object} failed")
  endif()
  string(REGEX MATCH "_(baseline|avx2|avx512_bf16|avx512)\\.dir" isa "${object}")
  set(isa ${CMAKE_MATCH_1})
  string(REPLACE "\n" ";" symbols "${symbols}")
  foreach(symbol ${symbols})
    math(EXPR checked "${checked} + 1")
    if(NOT symbol MATCHES "::cpu::${isa}::")
      message(FATAL_ERROR "${object} defines a symbol outside its namespace: ${symbol}\n"
        "hint: in *_simd.cc files keep every helper in namespace WEFT_ISA and off the std library")
    endif()
  endforeach()
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "no symbols found in: ${OBJECTS}")
endif()

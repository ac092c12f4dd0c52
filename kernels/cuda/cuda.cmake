# Whether this build has CUDA, and how its sources compile. Sets TRIBUTARY_HAS_CUDA and
# TRIBUTARY_HAS_NCCL, and says so. Nothing here needs a driver or a GPU: the runtime is linked
# statically, cuBLASLt and NCCL are opened when they are first used.
if(NOT TRIBUTARY_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TRIBUTARY_CUDA is ${TRIBUTARY_CUDA}, expected AUTO, ON or OFF")
endif()
set(TRIBUTARY_HAS_CUDA OFF)
set(TRIBUTARY_HAS_NCCL OFF)
if(TRIBUTARY_CUDA STREQUAL "ON" OR (TRIBUTARY_CUDA STREQUAL "AUTO" AND NOT TRIBUTARY_SANITIZE))
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDACXX ENV CUDA_PATH /usr/local/cuda
                 PATH_SUFFIXES bin)
  endif()
  if(CMAKE_CUDA_COMPILER)
    # sm_80 with its PTX, which the driver compiles for whatever comes later; sm_90a for wgmma and
    # bulk tensor copies, which exist there alone.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES "80;90a-real")
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    # The oldest nvcc that compiles all of it as far as we know: .ci/cuda_versions.sh.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.4)
      find_package(CUDAToolkit REQUIRED)
      set(TRIBUTARY_HAS_CUDA ON)
    elseif(TRIBUTARY_CUDA STREQUAL "ON")
      message(FATAL_ERROR "TRIBUTARY_CUDA is ON, but ${CMAKE_CUDA_COMPILER} is of CUDA "
                          "${CMAKE_CUDA_COMPILER_VERSION}, and 12.4 is needed")
    endif()
  elseif(TRIBUTARY_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIBUTARY_CUDA is ON, but there is no nvcc")
  else()
    unset(CMAKE_CUDA_COMPILER CACHE)
  endif()
endif()

if(TRIBUTARY_HAS_CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    # A fifth of the bytes. Drivers read it from CUDA 12.4 on, which we need anyway.
    string(APPEND CMAKE_CUDA_FLAGS " --compress-mode=size")
  endif()
  find_path(TRIBUTARY_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(TRIBUTARY_NCCL_INCLUDE)
    set(TRIBUTARY_HAS_NCCL ON)
  endif()
  message(STATUS "CUDA: ON, ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, architectures "
                 "${CMAKE_CUDA_ARCHITECTURES}; NCCL: ${TRIBUTARY_HAS_NCCL}")
elseif(TRIBUTARY_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: OFF, as TRIBUTARY_CUDA says")
elseif(TRIBUTARY_SANITIZE)
  message(STATUS "CUDA: OFF, in a build with sanitizers")
elseif(CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA: OFF, ${CMAKE_CUDA_COMPILER} is of CUDA ${CMAKE_CUDA_COMPILER_VERSION}, and "
                 "12.4 is needed")
else()
  message(STATUS "CUDA: OFF, there is no nvcc")
endif()

# Flags of every .cu file. -Wpedantic would complain about the line directives that nvcc writes for
# the host compiler.
add_library(tributary_cuda_options INTERFACE)
if(TRIBUTARY_HAS_CUDA)
  target_compile_options(tributary_cuda_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>"
    "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TRIBUTARY_WERROR}>>:-Werror=all-warnings;-Xcompiler=-Werror>")
  target_include_directories(tributary_cuda_options SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
endif()

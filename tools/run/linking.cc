// SPDX-License-Identifier: MIT
#include "tools/run/linking.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep {
namespace {

// A file's bytes, mapped: static programs may be hundreds of megabytes, of which little is looked at.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    struct stat what {};
    if (fstat(fd, &what) == 0 && S_ISREG(what.st_mode) && what.st_size > 0) {
      void* const at = mmap(nullptr, static_cast<size_t>(what.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (at != MAP_FAILED) {
        data_ = static_cast<const char*>(at);
        size_ = static_cast<size_t>(what.st_size);
      }
    }
    close(fd);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  template <class T>
  std::optional<T> at(uint64_t offset) const {
    T value;
    if (offset > size_ || size_ - offset < sizeof value) return std::nullopt;
    memcpy(&value, data_ + offset, sizeof value);
    return value;
  }
  std::string text(uint64_t offset) const {
    return offset < size_ ? std::string(data_ + offset, strnlen(data_ + offset, size_ - offset)) : std::string();
  }
  bool contains(const char* what) const { return memmem(data_, size_, what, strlen(what)) != nullptr; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

bool is_program(const Elf64_Ehdr& header) {
  return memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64 &&
         header.e_ident[EI_DATA] == ELFDATA2LSB && (header.e_type == ET_EXEC || header.e_type == ET_DYN) &&
         header.e_phentsize == sizeof(Elf64_Phdr);
}

std::vector<Elf64_Phdr> segments_of(const MappedFile& file, const Elf64_Ehdr& header) {
  std::vector<Elf64_Phdr> segments;
  for (uint64_t i = 0; i < header.e_phnum; ++i)
    if (const auto segment = file.at<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr))) segments.push_back(*segment);
  return segments;
}

// Where in the file an address of the loaded program comes from.
std::optional<uint64_t> file_offset(const std::vector<Elf64_Phdr>& segments, uint64_t address) {
  for (const Elf64_Phdr& segment : segments)
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr && address - segment.p_vaddr < segment.p_filesz)
      return segment.p_offset + (address - segment.p_vaddr);
  return std::nullopt;
}

void read_dynamic(const MappedFile& file, const std::vector<Elf64_Phdr>& segments, Linking& linking) {
  std::vector<uint64_t> names;
  uint64_t strings = 0;
  bool runpath = false;
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= segment.p_filesz; at += sizeof(Elf64_Dyn)) {
      const auto entry = file.at<Elf64_Dyn>(segment.p_offset + at);
      if (!entry || entry->d_tag == DT_NULL) break;
      if (entry->d_tag == DT_NEEDED) names.push_back(entry->d_un.d_val);
      if (entry->d_tag == DT_STRTAB) strings = entry->d_un.d_ptr;
      linking.rpath |= entry->d_tag == DT_RPATH;
      runpath |= entry->d_tag == DT_RUNPATH;
    }
  }
  linking.rpath &= !runpath;
  if (const auto table = file_offset(segments, strings))
    for (const uint64_t name : names) linking.needed.push_back(file.text(*table + name));
}

}  // namespace

bool Linking::needs(const std::string& prefix) const {
  return std::any_of(needed.begin(), needed.end(), [&](const std::string& name) {
    const size_t slash = name.rfind('/');
    return name.compare(slash == std::string::npos ? 0 : slash + 1, prefix.size(), prefix) == 0;
  });
}

std::optional<Linking> linking_of(const std::string& path) {
  const MappedFile file(path);
  const auto header = file.at<Elf64_Ehdr>(0);
  if (!header || !is_program(*header)) return std::nullopt;
  Linking linking;
  read_dynamic(file, segments_of(file, *header), linking);
  // Both leave marks that survive strip: cudart its build's name, NCCL the names of the variables it reads.
  linking.static_cudart = !linking.needs("libcudart.so") && file.contains("libcudart_static_");
  linking.static_nccl =
      !linking.needs("libnccl.so") && file.contains("NCCL_DEBUG_SUBSYS") && file.contains("NCCL_COMM_BLOCKING");
  return linking;
}

std::string host_obstacle(const std::string& path, const Linking& linking) {
  if (linking.static_nccl)
    return fmt::format(
        "{}: NCCL is linked in (libnccl_static.a), so the host runtime cannot take its place; relink with -lnccl",
        path);
  if (linking.static_cudart)
    return fmt::format(
        "{}: the CUDA runtime is linked in (nvcc's default), so the host runtime cannot take its place; relink with "
        "`nvcc -cudart shared` (or -lcudart)",
        path);
  if (linking.needs("libcudart.so.12") || linking.needs("libcudart.so.11"))
    return fmt::format(
        "{}: it is linked to an older libcudart than the host runtime's, libcudart.so.13; build it with CUDA 13", path);
  for (const std::string& name : linking.needed)
    if (name.find('/') != std::string::npos &&
        (name.find("libcudart.so") != std::string::npos || name.find("libnccl.so") != std::string::npos ||
         name.find("libcuda.so") != std::string::npos))
      return fmt::format(
          "{}: it names {} by its path, so the host runtime cannot take its place; relink with -lcudart "
          "-lnccl and -L",
          path, name);
  return "";
}

}  // namespace lockstep

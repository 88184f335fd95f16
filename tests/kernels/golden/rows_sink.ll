
define void @piece(ptr noalias %y, ptr noalias %bias, ptr noalias %residual, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot6 = alloca i64
  %slot12 = alloca i64
  %array32 = alloca [4 x <4 x float>], align 16
  %slot50 = alloca i64
  %array84 = alloca [4 x <4 x float>], align 16
  %slot102 = alloca i64
  %v1 = add i64 %start, 8
  %v2 = icmp slt i64 %v1, %tokens
  %v3 = select i1 %v2, i64 %v1, i64 %tokens
  %v4 = urem i64 %last, 4
  %v5 = sub i64 %last, %v4
  store i64 %start, ptr %slot6
  br label %head7
head7:
  %v10 = load i64, ptr %slot6
  %v11 = icmp slt i64 %v10, %v3
  br i1 %v11, label %body8, label %end9
body8:
  store i64 %first, ptr %slot12
  br label %head13
head13:
  %v16 = load i64, ptr %slot12
  %v17 = icmp slt i64 %v16, %v5
  br i1 %v17, label %body14, label %end15
body14:
  %v18 = add i64 %v10, 0
  %v19 = sub i64 %v16, %first
  %v20 = mul i64 %v19, 8
  %v21 = getelementptr float, ptr %outputs, i64 %v20
  %v22 = sub i64 %v18, %start
  %v23 = getelementptr float, ptr %v21, i64 %v22
  %v24 = getelementptr float, ptr %v23, i64 0
  %v25 = load <4 x float>, ptr %v24, align 4
  %v26 = getelementptr float, ptr %v23, i64 8
  %v27 = load <4 x float>, ptr %v26, align 4
  %v28 = getelementptr float, ptr %v23, i64 16
  %v29 = load <4 x float>, ptr %v28, align 4
  %v30 = getelementptr float, ptr %v23, i64 24
  %v31 = load <4 x float>, ptr %v30, align 4
  %v33 = shufflevector <4 x float> %v25, <4 x float> %v27, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v34 = shufflevector <4 x float> %v29, <4 x float> %v31, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v35 = shufflevector <4 x float> %v25, <4 x float> %v27, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v36 = shufflevector <4 x float> %v29, <4 x float> %v31, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v37 = shufflevector <4 x float> %v33, <4 x float> %v34, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v38 = shufflevector <4 x float> %v33, <4 x float> %v34, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v39 = shufflevector <4 x float> %v35, <4 x float> %v36, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v40 = shufflevector <4 x float> %v35, <4 x float> %v36, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v41 = getelementptr float, ptr %array32, i64 0
  store <4 x float> %v37, ptr %v41, align 4
  %v42 = getelementptr float, ptr %array32, i64 4
  store <4 x float> %v38, ptr %v42, align 4
  %v43 = getelementptr float, ptr %array32, i64 8
  store <4 x float> %v39, ptr %v43, align 4
  %v44 = getelementptr float, ptr %array32, i64 12
  store <4 x float> %v40, ptr %v44, align 4
  %v45 = getelementptr float, ptr %bias, i64 %v16
  %v46 = load <4 x float>, ptr %v45, align 4
  %v47 = sub i64 %tokens, %v18
  %v48 = icmp slt i64 %v47, 4
  %v49 = select i1 %v48, i64 %v47, i64 4
  store i64 0, ptr %slot50
  br label %head51
head51:
  %v54 = load i64, ptr %slot50
  %v55 = icmp slt i64 %v54, %v49
  br i1 %v55, label %body52, label %end53
body52:
  %v56 = add i64 %v18, %v54
  %v57 = mul i64 %v56, 24
  %v58 = add i64 %v57, %v16
  %v59 = mul i64 %v54, 4
  %v60 = getelementptr float, ptr %array32, i64 %v59
  %v61 = load <4 x float>, ptr %v60, align 4
  %v62 = getelementptr float, ptr %residual, i64 %v58
  %v63 = load <4 x float>, ptr %v62, align 4
  %v64 = fadd <4 x float> %v61, %v46
  %v65 = fadd <4 x float> %v64, %v63
  %v66 = fcmp olt <4 x float> %v65, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %v67 = select <4 x i1> %v66, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v65
  %v68 = getelementptr float, ptr %y, i64 %v58
  store <4 x float> %v67, ptr %v68, align 4
  %v69 = add nsw i64 %v54, 1
  store i64 %v69, ptr %slot50
  br label %head51
end53:
  %v70 = add i64 %v10, 4
  %v71 = sub i64 %v16, %first
  %v72 = mul i64 %v71, 8
  %v73 = getelementptr float, ptr %outputs, i64 %v72
  %v74 = sub i64 %v70, %start
  %v75 = getelementptr float, ptr %v73, i64 %v74
  %v76 = getelementptr float, ptr %v75, i64 0
  %v77 = load <4 x float>, ptr %v76, align 4
  %v78 = getelementptr float, ptr %v75, i64 8
  %v79 = load <4 x float>, ptr %v78, align 4
  %v80 = getelementptr float, ptr %v75, i64 16
  %v81 = load <4 x float>, ptr %v80, align 4
  %v82 = getelementptr float, ptr %v75, i64 24
  %v83 = load <4 x float>, ptr %v82, align 4
  %v85 = shufflevector <4 x float> %v77, <4 x float> %v79, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v86 = shufflevector <4 x float> %v81, <4 x float> %v83, <4 x i32> <i32 0, i32 4, i32 1, i32 5>
  %v87 = shufflevector <4 x float> %v77, <4 x float> %v79, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v88 = shufflevector <4 x float> %v81, <4 x float> %v83, <4 x i32> <i32 2, i32 6, i32 3, i32 7>
  %v89 = shufflevector <4 x float> %v85, <4 x float> %v86, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v90 = shufflevector <4 x float> %v85, <4 x float> %v86, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v91 = shufflevector <4 x float> %v87, <4 x float> %v88, <4 x i32> <i32 0, i32 1, i32 4, i32 5>
  %v92 = shufflevector <4 x float> %v87, <4 x float> %v88, <4 x i32> <i32 2, i32 3, i32 6, i32 7>
  %v93 = getelementptr float, ptr %array84, i64 0
  store <4 x float> %v89, ptr %v93, align 4
  %v94 = getelementptr float, ptr %array84, i64 4
  store <4 x float> %v90, ptr %v94, align 4
  %v95 = getelementptr float, ptr %array84, i64 8
  store <4 x float> %v91, ptr %v95, align 4
  %v96 = getelementptr float, ptr %array84, i64 12
  store <4 x float> %v92, ptr %v96, align 4
  %v97 = getelementptr float, ptr %bias, i64 %v16
  %v98 = load <4 x float>, ptr %v97, align 4
  %v99 = sub i64 %tokens, %v70
  %v100 = icmp slt i64 %v99, 4
  %v101 = select i1 %v100, i64 %v99, i64 4
  store i64 0, ptr %slot102
  br label %head103
head103:
  %v106 = load i64, ptr %slot102
  %v107 = icmp slt i64 %v106, %v101
  br i1 %v107, label %body104, label %end105
body104:
  %v108 = add i64 %v70, %v106
  %v109 = mul i64 %v108, 24
  %v110 = add i64 %v109, %v16
  %v111 = mul i64 %v106, 4
  %v112 = getelementptr float, ptr %array84, i64 %v111
  %v113 = load <4 x float>, ptr %v112, align 4
  %v114 = getelementptr float, ptr %residual, i64 %v110
  %v115 = load <4 x float>, ptr %v114, align 4
  %v116 = fadd <4 x float> %v113, %v98
  %v117 = fadd <4 x float> %v116, %v115
  %v118 = fcmp olt <4 x float> %v117, <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>
  %v119 = select <4 x i1> %v118, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v117
  %v120 = getelementptr float, ptr %y, i64 %v110
  store <4 x float> %v119, ptr %v120, align 4
  %v121 = add nsw i64 %v106, 1
  store i64 %v121, ptr %slot102
  br label %head103
end105:
  %v122 = add nsw i64 %v16, 4
  store i64 %v122, ptr %slot12
  br label %head13
end15:
  %v123 = add nsw i64 %v10, 8
  store i64 %v123, ptr %slot6
  br label %head7
end9:
  ret void
}

declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)

define void @piece(ptr noalias %starts, ptr noalias %columns, ptr noalias %weights, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot2 = alloca i64
  %slot27 = alloca <4 x float>
  %slot31 = alloca <4 x float>
  %slot35 = alloca <4 x float>
  %slot36 = alloca <4 x float>
  %slot37 = alloca i64
  %slot80 = alloca i64
  %v1 = icmp eq i64 %block, 0
  store i64 %first, ptr %slot2
  br label %head3
head3:
  %v6 = load i64, ptr %slot2
  %v7 = icmp slt i64 %v6, %last
  br i1 %v7, label %body4, label %end5
body4:
  %v8 = mul i64 %block, 25
  %v9 = add i64 %v8, %v6
  %v10 = getelementptr i32, ptr %starts, i64 %v9
  %v11 = getelementptr i32, ptr %v10, i64 0
  %v12 = load i32, ptr %v11, align 4
  %v13 = zext i32 %v12 to i64
  %v14 = getelementptr i32, ptr %v10, i64 1
  %v15 = load i32, ptr %v14, align 4
  %v16 = zext i32 %v15 to i64
  %v17 = icmp slt i64 %v13, %v16
  %v18 = or i1 %v1, %v17
  br i1 %v18, label %then19, label %join20
then19:
  %v21 = sub i64 %v6, %first
  %v22 = mul i64 %v21, 8
  %v23 = getelementptr float, ptr %outputs, i64 %v22
  %v24 = getelementptr float, ptr %v23, i64 0
  %v25 = load <4 x float>, ptr %v24, align 4
  %v26 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v25
  store <4 x float> %v26, ptr %slot27
  %v28 = getelementptr float, ptr %v23, i64 4
  %v29 = load <4 x float>, ptr %v28, align 4
  %v30 = select i1 %v1, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, <4 x float> %v29
  store <4 x float> %v30, ptr %slot31
  %v32 = sub i64 %v16, %v13
  %v33 = urem i64 %v32, 2
  %v34 = sub i64 %v16, %v33
  store <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, ptr %slot35
  store <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>, ptr %slot36
  store i64 %v13, ptr %slot37
  br label %head38
head38:
  %v41 = load i64, ptr %slot37
  %v42 = icmp slt i64 %v41, %v34
  br i1 %v42, label %body39, label %end40
body39:
  %v43 = add i64 %v41, 0
  %v44 = getelementptr i16, ptr %columns, i64 %v43
  %v45 = load i16, ptr %v44, align 2
  %v46 = zext i16 %v45 to i64
  %v47 = mul i64 %v46, 8
  %v48 = getelementptr float, ptr %inputs, i64 %v47
  %v49 = getelementptr float, ptr %weights, i64 %v43
  %v50 = load float, ptr %v49, align 4
  %v51 = insertelement <4 x float> poison, float %v50, i64 0
  %v52 = shufflevector <4 x float> %v51, <4 x float> poison, <4 x i32> zeroinitializer
  %v53 = getelementptr float, ptr %v48, i64 0
  %v54 = load <4 x float>, ptr %v53, align 4
  %v55 = load <4 x float>, ptr %slot27
  %v56 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v52, <4 x float> %v54, <4 x float> %v55)
  store <4 x float> %v56, ptr %slot27
  %v57 = getelementptr float, ptr %v48, i64 4
  %v58 = load <4 x float>, ptr %v57, align 4
  %v59 = load <4 x float>, ptr %slot31
  %v60 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v52, <4 x float> %v58, <4 x float> %v59)
  store <4 x float> %v60, ptr %slot31
  %v61 = add i64 %v41, 1
  %v62 = getelementptr i16, ptr %columns, i64 %v61
  %v63 = load i16, ptr %v62, align 2
  %v64 = zext i16 %v63 to i64
  %v65 = mul i64 %v64, 8
  %v66 = getelementptr float, ptr %inputs, i64 %v65
  %v67 = getelementptr float, ptr %weights, i64 %v61
  %v68 = load float, ptr %v67, align 4
  %v69 = insertelement <4 x float> poison, float %v68, i64 0
  %v70 = shufflevector <4 x float> %v69, <4 x float> poison, <4 x i32> zeroinitializer
  %v71 = getelementptr float, ptr %v66, i64 0
  %v72 = load <4 x float>, ptr %v71, align 4
  %v73 = load <4 x float>, ptr %slot35
  %v74 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v70, <4 x float> %v72, <4 x float> %v73)
  store <4 x float> %v74, ptr %slot35
  %v75 = getelementptr float, ptr %v66, i64 4
  %v76 = load <4 x float>, ptr %v75, align 4
  %v77 = load <4 x float>, ptr %slot36
  %v78 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v70, <4 x float> %v76, <4 x float> %v77)
  store <4 x float> %v78, ptr %slot36
  %v79 = add nsw i64 %v41, 2
  store i64 %v79, ptr %slot37
  br label %head38
end40:
  store i64 %v34, ptr %slot80
  br label %head81
head81:
  %v84 = load i64, ptr %slot80
  %v85 = icmp slt i64 %v84, %v16
  br i1 %v85, label %body82, label %end83
body82:
  %v86 = getelementptr i16, ptr %columns, i64 %v84
  %v87 = load i16, ptr %v86, align 2
  %v88 = zext i16 %v87 to i64
  %v89 = mul i64 %v88, 8
  %v90 = getelementptr float, ptr %inputs, i64 %v89
  %v91 = getelementptr float, ptr %weights, i64 %v84
  %v92 = load float, ptr %v91, align 4
  %v93 = insertelement <4 x float> poison, float %v92, i64 0
  %v94 = shufflevector <4 x float> %v93, <4 x float> poison, <4 x i32> zeroinitializer
  %v95 = getelementptr float, ptr %v90, i64 0
  %v96 = load <4 x float>, ptr %v95, align 4
  %v97 = load <4 x float>, ptr %slot27
  %v98 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v94, <4 x float> %v96, <4 x float> %v97)
  store <4 x float> %v98, ptr %slot27
  %v99 = getelementptr float, ptr %v90, i64 4
  %v100 = load <4 x float>, ptr %v99, align 4
  %v101 = load <4 x float>, ptr %slot31
  %v102 = call <4 x float> @llvm.fma.v4f32(<4 x float> %v94, <4 x float> %v100, <4 x float> %v101)
  store <4 x float> %v102, ptr %slot31
  %v103 = add nsw i64 %v84, 1
  store i64 %v103, ptr %slot80
  br label %head81
end83:
  %v104 = load <4 x float>, ptr %slot27
  %v105 = load <4 x float>, ptr %slot35
  %v106 = fadd <4 x float> %v104, %v105
  store <4 x float> %v106, ptr %slot27
  %v107 = load <4 x float>, ptr %slot31
  %v108 = load <4 x float>, ptr %slot36
  %v109 = fadd <4 x float> %v107, %v108
  store <4 x float> %v109, ptr %slot31
  %v110 = load <4 x float>, ptr %slot27
  %v111 = getelementptr float, ptr %v23, i64 0
  store <4 x float> %v110, ptr %v111, align 4
  %v112 = load <4 x float>, ptr %slot31
  %v113 = getelementptr float, ptr %v23, i64 4
  store <4 x float> %v112, ptr %v113, align 4
  br label %join20
join20:
  %v114 = add nsw i64 %v6, 1
  store i64 %v114, ptr %slot2
  br label %head3
end5:
  ret void
}
